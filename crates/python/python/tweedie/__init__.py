"""Tweedie Discrete Diffusion: train, sample, measure and look into models.

>>> import tweedie
>>> model = tweedie.load("embedded:digits")
>>> model.classify(tweedie.example("digits")).label
'4'
"""

from tweedie import metrics
from tweedie._model import Model, embedded_models, load
from tweedie._plug import Prediction, Sampler, Schedule, Update, sample
from tweedie._results import Answer, Scores, Text
from tweedie._trace import Step, Trace
from tweedie._train import Run, recipes, settings, train
from tweedie._tweedie import Error, Tensor, __version__, set_threads
from tweedie._data import example, examples

__all__ = [
    "Answer",
    "Error",
    "Model",
    "Prediction",
    "Run",
    "Sampler",
    "Schedule",
    "Scores",
    "Step",
    "Tensor",
    "Text",
    "Trace",
    "Update",
    "__version__",
    "embedded_models",
    "example",
    "examples",
    "load",
    "metrics",
    "recipes",
    "sample",
    "set_threads",
    "settings",
    "train",
]
