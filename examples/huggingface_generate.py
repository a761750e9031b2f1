# /// script
# requires-python = ">=3.11"
# dependencies = ["logitsieve[huggingface,server]"]
#
# [tool.uv.sources]
# logitsieve = { path = ".." }
# ///
"""A Hugging Face model with an index as its output layer.

logitsieve capture --huggingface ./model --text corpus.txt.gz --out captured
logitsieve build --weight captured/weight.npy --contexts captured --out models/lm/1
python examples/huggingface_generate.py ./model models/lm/1 "Once upon a time"
"""

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index


def main(folder: str, path: str, prompt: str) -> None:
    """Generate with the model's own output layer, then with the index, and compare."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(prompt, return_tensors="pt")
    decoder = LocalDecoder(open_index(path))

    options = {"max_new_tokens": 20, "do_sample": False, "num_beams": 4, "pad_token_id": 0}
    plain = model.generate(**inputs, **options)
    with attach(model, decoder, head="sketch", normalizer="full"):
        answered = model.generate(**inputs, **options)
    print(tokenizer.decode(answered[0]))
    print("the same ids" if torch.equal(plain, answered) else "other ids")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3])
