#!/usr/bin/env python3
"""Writes the demo model's tokenizer and chat template as a model directory, for peers that read no GGUF.

usage: tokenizer_json.py MODEL.gguf FOLDER      (needs the `gguf` package)
"""

import json
import pathlib
import sys

from gguf import GGUFReader

CONTROL = 3  # llama.cpp's token type of control tokens


def main(model: str, folder: str) -> None:
    fields = GGUFReader(model).fields

    def texts(key):
        field = fields[key]
        return [bytes(field.parts[at]).decode() for at in field.data]

    def number(key):
        field = fields[key]
        return int(field.parts[field.data[0]][0])

    tokens = texts("tokenizer.ggml.tokens")
    kinds = fields["tokenizer.ggml.token_type"]
    kinds = [int(kinds.parts[at][0]) for at in kinds.data]
    special = [
        {"id": id, "content": text, "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        for id, (text, kind) in enumerate(zip(tokens, kinds))
        if kind == CONTROL
    ]
    pre = [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: id for id, text in enumerate(tokens)}, "merges": texts("tokenizer.ggml.merges")},
    }
    bos, eos = (tokens[number(f"tokenizer.ggml.{name}_token_id")] for name in ("bos", "eos"))
    (template,) = texts("tokenizer.chat_template")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "chat_template": template, "model_max_length": 2048}
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    (out / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": number("tokenizer.ggml.eos_token_id"), "max_position_embeddings": 2048}))


main(*sys.argv[1:])
