"""`python -m gpaco`, for torchrun."""

from gpaco.cli.main import main

if __name__ == "__main__":
    main()
