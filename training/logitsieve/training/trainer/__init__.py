"""An LSTM language model trained on a text file, with any loss of LOSSES."""

from logitsieve.training.config import TrainConfig
from logitsieve.training.trainer.corpus import Corpus, windows
from logitsieve.training.trainer.language_model import LanguageModel
from logitsieve.training.trainer.run import Outcome, TrainingStatus, prepare, train
from logitsieve.training.trainer.settings import Settings, begin
from logitsieve.training.trainer.trainer import Trainer
from logitsieve.training.trainer.vocabulary import Vocabulary

__all__ = [
    "Corpus", "LanguageModel", "Outcome", "Settings", "TrainConfig", "Trainer", "TrainingStatus",
    "Vocabulary", "begin", "prepare", "train", "windows",
]  # fmt: skip
