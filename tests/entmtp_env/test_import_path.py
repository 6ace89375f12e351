import sys

import pytest

from entmtp_env.import_path import NoSuchModuleError, import_object


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a package in the current directory, which is not on ``sys.path``, and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write_module(text):
        (tmp_path / "a_package").mkdir()
        (tmp_path / "a_package" / "inner.py").write_text(text)
        return "a_package.inner"

    yield write_module
    for name in ("a_package", "a_package.inner"):
        sys.modules.pop(name, None)


def test_what_is_in_the_current_directory_is_found_and_the_path_left_as_it_was(write):
    module, path = (
        write("class Thing:\n    pass\n\n\ndef make():\n    return Thing()\n\n\nnumber = 3\n"),
        [*sys.path],
    )
    assert type(import_object(f"{module}:make")()) is import_object(f"{module}:Thing")
    assert import_object(f"{module}:number") == 3
    assert sys.path == path
    with pytest.raises(ValueError, match=r"'a_package\.inner' has no 'Thin'; .* are: Thing, make$") as error:
        import_object(f"{module}:Thin")
    assert error.type is ValueError


@pytest.mark.parametrize(
    "path", ["", "math", "math:", ":sin", "..:A", "a b:C", "1:2", "no.such.module:Class"]
)
def test_no_module_is_told_from_no_such_name(path):
    with pytest.raises(
        NoSuchModuleError, match=r"import path; write package\.module:name|no module 'no\.such"
    ):
        import_object(path)


@pytest.mark.parametrize(
    ("text", "error"), [("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError)]
)
def test_a_module_that_fails_shows_its_own_error(write, text, error):
    with pytest.raises(error, match=r"no_such_package|division by zero"):
        import_object(f"{write(text)}:Thing")
