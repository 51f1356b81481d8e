"""Text and bytes of single tokens, for logprobs: one token may hold only part of a character."""

from __future__ import annotations

import re
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from headrace_engine.text.detokenize import special_ids

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


class TokenTexts:
    """The bytes of each token, looked up on demand and cached. Thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        self._special = special_ids(tokenizer)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        self._byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        self._known: dict[int, bytes] = {}

    def is_special(self, token: int) -> bool:
        """Whether the token is special, such as EOS, and adds nothing to the text."""
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        """The token's UTF-8 bytes, which may be part of a character; a special token's name."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._look_up(token)
        return found

    def text_of(self, token: int) -> str:
        """Readable text; U+FFFD stands for incomplete characters."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def name_of(self, token: int) -> str:
        """The text, or `bytes:\\xe2\\x80` if characters are incomplete, so that tokens stay distinct as keys."""
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _look_up(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""  # a vocabulary id without a token
        if self._byte_level:
            return b"".join(bytes((_BYTE_OF[char],)) if char in _BYTE_OF else char.encode() for char in piece)
        one_byte = BYTE_TOKEN.fullmatch(piece)
        return bytes((int(one_byte[1], 16),)) if one_byte else piece.replace("\u2581", " ").encode()
