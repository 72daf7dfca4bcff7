"""An exchange outside a watched run: it ends by itself where another process never comes."""

import jax
import pytest

from dew.training import board, pool


class Alone:
    """The coordination service of a pool of which one process alone has anything to say."""

    def __init__(self):
        self.held = {}

    def key_value_set(self, key, text, allow_overwrite=False):
        self.held[key] = text

    def key_value_dir_get(self, start):
        return [(key, text) for key, text in self.held.items() if key.startswith(start)]

    def key_value_delete(self, key):
        del self.held[key]


@pytest.fixture
def of_three(monkeypatch):
    service = Alone()
    monkeypatch.setattr(board, "client", lambda: service)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setenv("DEW_PATIENCE_S", "0.1")
    return service


def test_who_waits_in_vain_names_the_missing(of_three, monkeypatch):
    post = board.post

    def with_another(key, text):
        post(key, text)
        post(key.removesuffix("/0") + "/2", text)

    monkeypatch.setattr(board, "post", with_another)
    with pytest.raises(
        pool.PoolFailure, match=r"process 0 of 3 failed: it waited 0.2 s at a vote for"
    ) as said:
        pool.exchange("a vote", "yes")
    assert str(said.value).endswith("for process 1")


def test_who_comes_in_time_is_heard(of_three, monkeypatch):
    post = board.post

    def with_all(key, text):
        for index in range(3):
            post(key.removesuffix("0") + str(index), f"{text} {index}")

    monkeypatch.setattr(board, "post", with_all)
    assert pool.exchange("a vote", "yes") == ["yes 0", "yes 1", "yes 2"]
