"""
Training programs that show how trainctl is used; they know `trainctl.train` and nothing else of it.
"""
