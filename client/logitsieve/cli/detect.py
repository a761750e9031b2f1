from dataclasses import MISSING, dataclass
from pathlib import Path

from logitsieve.api.errors import naming
from logitsieve.api.watermark import WatermarkKey
from logitsieve.cli.options import AsJson, flag, read_text
from logitsieve.cli.output import print_json


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    key_file: Path = flag(MISSING, "The file with the watermark's key.")
    text: Path = flag(MISSING, "A file with the text, UTF-8.")
    model: Path = flag(MISSING, "The model that made the text, GGUF.", "--model", "-m")


def command(options: DetectOptions, as_json: AsJson = False) -> None:
    """Score a text by the key of `generate --watermark-key` or `serve-gguf --watermark-key-file`.

    The p-value is the chance of at least this score for text made without the key. The first four
    tokens, and tokens after four that the text had before, do not count.

    Example: logitsieve detect --key-file key --text answer.txt -m lm.gguf
    """
    from logitsieve.decoding.watermark import detect_watermark
    from logitsieve.llamacpp.model import LlamaModel

    key = WatermarkKey.read(options.key_file, "key_file")
    text = read_text("text", options.text, "a UTF-8 text file").removesuffix("\n")
    with LlamaModel(options.model) as model, naming("text"):
        found = detect_watermark(key, model.tokenize(text, begin=False, special=False))
    if as_json:
        print_json(found._asdict())
    else:
        score, p_value, tokens = found
        print(f"score {score:.1f} of {tokens} tokens; without the key p = {p_value:.3g}")
