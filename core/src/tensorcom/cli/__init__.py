"""Command line of tensorcom: one module per command, imported only when that command runs."""
