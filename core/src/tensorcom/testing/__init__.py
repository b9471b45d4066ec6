"""Helpers for tests of tensorcom and of programs that use it; nothing here imports pytest."""
