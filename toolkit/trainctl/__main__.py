"""`python -m trainctl`: the same as the command `trainctl`."""

from trainctl.cli.main import main

if __name__ == "__main__":
    main()
