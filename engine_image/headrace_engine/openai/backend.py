"""What the routes need of one engine besides its loop: prompts, grammars, tool calls, texts of tokens."""

from __future__ import annotations

from collections.abc import Callable

from headrace_engine.engine import Engine
from headrace_engine.executors import Executor, Executors
from headrace_engine.http.errors import invalid
from headrace_engine.openai.constraints import Constraint, constraint_of
from headrace_engine.openai.messages import NamedChoice
from headrace_engine.openai.prompts import Prompts
from headrace_engine.openai.schema import ChatBody, GenerationBody
from headrace_engine.openai.tools import ToolFormat, ToolParser, forced_parser, format_of, mark_of, parser_for
from headrace_engine.sampling.grammar import Grammar, GrammarCompiler
from headrace_engine.sampling.grammar_spec import GrammarError, GrammarKind, GrammarSpec
from headrace_engine.text.token_text import TokenTexts

AUTO = "auto"


class Backend:
    """Made at the first call. Used by the event loop only."""

    def __init__(self, engine: Engine, *, tool_call_parser: str = AUTO) -> None:
        model = engine.model
        self.engine = engine
        self.executors = Executors()
        self.prompts = Prompts(
            model.tokenizer, self.executors, vocab_size=model.vocab_size, max_model_len=engine.max_model_len
        )
        self._compiler = GrammarCompiler(
            model.tokenizer, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
        )
        self._tool_call_parser = tool_call_parser
        self._texts: TokenTexts | None = None

    def texts(self) -> TokenTexts:
        """The texts of single tokens, made on first use."""
        self._texts = self._texts or TokenTexts(self.engine.model.tokenizer)
        return self._texts

    def check(self, body: GenerationBody) -> None:
        """Check the fields that depend on the model. Raises `ApiError` 400."""
        self.prompts.check_ids(body.stop_token_ids or (), param="stop_token_ids")
        self.prompts.check_ids(tuple(body.biases), param="logit_bias")
        if isinstance(body, ChatBody) and body.choice_of_tools == "auto" and self._knows_tools():
            self._check_auto()

    async def grammar(self, body: GenerationBody) -> Grammar | None:
        """The compiled grammar that a body asks for. Raises `ApiError` 400."""
        constraint = constraint_of(body)
        if constraint is None:
            return None
        return await self.executors.run(lambda: self._compile(constraint), executor=Executor.GRAMMAR)

    def tool_parser(self, body: GenerationBody) -> Callable[[], ToolParser] | None:
        """A factory of one parser per choice, or None if the body cannot lead to tool calls."""
        if not isinstance(body, ChatBody) or (choice := body.choice_of_tools) == "none":
            return None
        if choice == "auto":
            kind = self._tool_format()
            return lambda: parser_for(kind)
        name = choice.function.name if isinstance(choice, NamedChoice) else None
        return lambda: forced_parser(name)

    def hides_special(self, body: GenerationBody) -> bool:
        """Whether special tokens stay out of the text; not if the client asks for them or they announce tool calls."""
        if not (isinstance(body, ChatBody) and body.choice_of_tools == "auto"):
            return body.skip_special_tokens
        marks = self.engine.model.tokenizer.all_special_tokens
        return body.skip_special_tokens and mark_of(self._tool_format()) not in marks

    def _compile(self, constraint: Constraint) -> Grammar:
        try:
            return self._compiler.compile(GrammarSpec(GrammarKind(constraint.kind), constraint.value))
        except GrammarError as error:
            raise invalid(f"{constraint.param}: {error}", param=constraint.param, code="invalid_grammar") from error

    def _knows_tools(self) -> bool:
        return self.prompts.template.exists and self.prompts.template.knows("tools", tools=True)

    def _tool_format(self) -> ToolFormat:
        if self._tool_call_parser != AUTO:
            return ToolFormat(self._tool_call_parser)
        return format_of(self.prompts.template.source(tools=True))

    def _check_auto(self) -> None:
        if self._tool_format() is ToolFormat.NONE:
            raise invalid(
                "this server cannot read the tool calls that this model writes by itself: set tool_choice to "
                '"required" or to a function, or start the server with --tool-call-parser hermes',
                param="tool_choice", code="unsupported_parameter",
            )  # fmt: skip
