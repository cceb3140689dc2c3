"""Tweedie Discrete Diffusion: train, sample, measure and look into models."""

from tweedie._tweedie import Error, __version__

__all__ = ["Error", "__version__"]
