"""Fit a small network to a noisy sine."""
