"""Projects are read from folders and git repositories, without version control and caches."""

import shutil
import subprocess

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.tasks.repository.project import is_source, is_test, licences, read_project, search_path


@pytest.mark.parametrize("path", ["pkg/a.py", "src/pkg/_b.py", "single.py"])
def test_source(path):
    assert is_source(path) and not is_test(path)


@pytest.mark.parametrize("path", ["tests/x.py", "pkg/test_a.py", "pkg/a_test.py", "conftest.py", "pkg/tests/data.py"])
def test_tests_are_no_source(path):
    assert is_test(path) and not is_source(path)


@pytest.mark.parametrize("path", ["setup.py", "docs/conf.py", "sitecustomize.py", "pytest.ini", "pkg/_vendor/x.py"])
def test_configuration_is_no_source(path):
    assert not is_source(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "shop"
    for path, text in {"shop/a.py": "x = 1\n", "LICENSE.txt": "MIT", ".git/config": "", "shop/a.pyc": ""}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "link.py").symlink_to("/etc/passwd")
    return root


def test_a_folder_is_read_without_version_control_caches_and_links(folder):
    found = read_project(folder)
    assert (found.name, found.source) == ("shop", str(folder))
    assert dict(found.files) == {"LICENSE.txt": b"MIT", "shop/a.py": b"x = 1\n"}
    assert licences(found.files) == ["LICENSE.txt"] and search_path(found.files) == [""]
    assert search_path({"src/shop/a.py": b""}) == ["src", ""]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_git_repository_is_cloned_and_its_commit_is_named(folder, tmp_path):
    shutil.rmtree(folder / ".git")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for arguments in (["init", "-q"], ["add", "shop", "LICENSE.txt"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    found = read_project(f"file://{folder}")
    assert (found.name, found.source) == ("shop", f"file://{folder} at {commit}")
    assert sorted(found.files) == ["LICENSE.txt", "shop/a.py"]


@pytest.mark.parametrize("project", ["no/such/folder", "toolz", "file:///no/such/repository.git"])
def test_anything_else_is_refused(project):
    with pytest.raises(InvalidConfigError, match=project):
        read_project(project)


def test_a_folder_without_python_is_refused(tmp_path):
    with pytest.raises(InvalidConfigError, match="no Python source"):
        read_project(tmp_path)
