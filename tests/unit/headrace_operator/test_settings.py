"""The operator's settings: the root token."""

from pathlib import Path

import pytest

from headrace_operator.settings import OperatorSettingsError, read_token


def test_the_root_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(tmp_path / "token", "") == "0123456789abcdef"
    with pytest.raises(OperatorSettingsError, match="at least 16"):
        read_token(None, "short")
    with pytest.raises(OperatorSettingsError, match="cannot be read"):
        read_token(tmp_path / "missing", "")
