"""`python -m gpaco`, as torchrun wants it."""

from gpaco.cli.main import main

if __name__ == "__main__":
    main()
