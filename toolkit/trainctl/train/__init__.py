"""What a training program imports. Importing it imports nothing but the standard library."""
