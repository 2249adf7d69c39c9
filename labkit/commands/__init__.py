"""What `python -m labkit NAME` does beside making copies: each module has a `main(arguments)`, named in __main__.py."""
