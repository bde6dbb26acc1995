"""Words for messages."""


def counted(n: int, word: str) -> str:
    """A number of things in words.

    >>> counted(1, "image"), counted(2000, "class")
    ('1 image', '2,000 classes')
    """
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"
