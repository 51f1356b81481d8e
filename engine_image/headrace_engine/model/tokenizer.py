"""A model's tokenizer, fixed up for what the model needs: BOS in front, a chat template, no token without a row.

transformers follows the files literally, and files are often incomplete: a tokenizer.json that adds no BOS although
tokenizer_config.json asks for it, a GGUF file without a template, an added token beyond the embedding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from headrace_engine.errors import ModelError
from headrace_engine.model.gguf_header import GgufHeader
from headrace_engine.model.weights import WeightSource

# Without <bos> in front these answer nonsense; their files often do not say that they need it.
NEEDS_BOS = ("gemma",)
TURN_START, TURN_END = "<start_of_turn>", "<end_of_turn>"
GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- if messages[0]['role'] in ('system', 'developer') %}
    {%- set first = messages[0]['content'] | trim + '\\n\\n' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') + message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""


def load_tokenizer(source: WeightSource, *, model_type: str, rows: int) -> Any:
    """The tokenizer of `source` for a model of `rows` embedding rows. `ModelError`, or errors of transformers."""
    tokenizer = AutoTokenizer.from_pretrained(**source.location)
    _drop_tokens_without_row(source, tokenizer, rows)
    if _wants_bos(source, model_type):
        add_bos(tokenizer, source.where)
    if source.chat_template is not None:
        set_template(tokenizer, source.chat_template)
    else:
        add_template(tokenizer, source.gguf)
    return tokenizer


def set_template(tokenizer: Any, path: Path) -> None:
    """Use the file's chat template. Raises `ModelError` naming the file, and the line of a syntax error."""
    try:
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"--chat-template {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"--chat-template {path}: is not UTF-8 text: {error}") from error
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise ModelError(f"--chat-template {path}, line {error.lineno}: {error.message}: correct it") from error
    except Exception:  # noqa: S110  (a template may refuse these messages and accept others)
        pass


def add_bos(tokenizer: Any, where: str) -> None:
    """Make `tokenizer` put BOS in front of texts. Raises `ModelError` if that is impossible."""
    bos = tokenizer.bos_token_id
    if bos is None or _adds(tokenizer, bos):
        return
    tokenizer.add_bos_token = True  # rewrites the fast tokenizer's post-processor
    if not _adds(tokenizer, bos):
        raise ModelError(
            f"{where}: the model needs {tokenizer.bos_token} in front of every text and its tokenizer cannot be made "
            "to add it: use a tokenizer.json that does"
        )


def add_template(tokenizer: Any, gguf: GgufHeader | None = None) -> None:
    """Add Gemma's template if the vocabulary has its turns and none came along; add BOS to a GGUF's template."""
    template = tokenizer.chat_template
    if not template:
        if has_turns(tokenizer):
            tokenizer.chat_template = GEMMA_TEMPLATE
    elif gguf is not None and gguf.adds_bos and isinstance(template, str) and not _writes_bos(tokenizer):
        # Runtimes for GGUF files add BOS to a rendered chat; here the template must write it.
        tokenizer.chat_template = "{{ bos_token }}" + template


def turn_ends(tokenizer: Any, gguf: GgufHeader | None = None) -> frozenset[int]:
    """Token ids that end an answer, in addition to those named by the config."""
    ends = frozenset() if gguf is None else gguf.end_ids
    template = tokenizer.chat_template
    if has_turns(tokenizer) and isinstance(template, str) and TURN_END in template:
        ends |= {tokenizer.convert_tokens_to_ids(TURN_END)}
    return ends


def has_turns(tokenizer: Any) -> bool:
    """Whether the vocabulary has Gemma's turn marks."""
    return {TURN_START, TURN_END}.issubset(tokenizer.get_vocab())


def _adds(tokenizer: Any, bos: int) -> bool:
    return bool(tokenizer("a")["input_ids"][:1] == [bos])


def _writes_bos(tokenizer: Any) -> bool:
    if tokenizer.bos_token is None:
        return True
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except Exception:  # a template may raise anything; then it is left as it is
        return True
    return str(text).lstrip().startswith(tokenizer.bos_token)


def _wants_bos(source: WeightSource, model_type: str) -> bool:
    if source.gguf is not None:
        return source.gguf.adds_bos
    said = _said_in_config(Path(source.where) / "tokenizer_config.json")
    return model_type.startswith(NEEDS_BOS) if said is None else said


def _said_in_config(path: Path) -> bool | None:
    """`add_bos_token` in tokenizer_config.json, which transformers ignores if there is a tokenizer.json."""
    try:
        said = json.loads(path.read_text(encoding="utf-8")).get("add_bos_token")
    except (OSError, ValueError, AttributeError):
        return None  # absent, or AutoTokenizer has reported what is wrong
    return said if isinstance(said, bool) else None


def _drop_tokens_without_row(source: WeightSource, tokenizer: Any, rows: int) -> None:
    """Make added tokens beyond the embedding plain text: a prompt that contains one would stop the engine."""
    vocabulary = tokenizer.get_vocab()
    beyond = {token for token, index in vocabulary.items() if index >= rows}
    if not beyond:
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if backend is None or beyond - added:
        raise ModelError(
            f"{source.where}: the tokenizer has token ids up to {max(vocabulary.values())}, but the model's embedding "
            f"has {rows} rows: the tokenizer belongs to another model; copy the right one"
        )
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < rows]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))  # noqa: SLF001  (the library has no way to remove one)
