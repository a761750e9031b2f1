"""An LSTM language model trained on a text file, with any loss of LOSSES."""

from logitsieve.training import TrainConfig
from logitsieve.training.trainer.corpus import Corpus
from logitsieve.training.trainer.language_model import LanguageModel
from logitsieve.training.trainer.trainer import Trainer, TrainingStatus, begin, load_config, train
from logitsieve.training.vocabulary import Vocabulary

__all__ = [
    "Corpus", "LanguageModel", "TrainConfig", "Trainer", "TrainingStatus", "Vocabulary", "begin",
    "load_config", "train",
]  # fmt: skip
