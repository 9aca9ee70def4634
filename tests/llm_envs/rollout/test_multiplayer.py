"""Games of several seats: the episodes of each seat, which games are shared, opponents, failures and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from llm_envs.env import SeatedEnv
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ReplayPolicy
from llm_envs.policies.scripted import RandomPolicy
from llm_envs.rollout import Collector, EpisodeSpec, MultiplayerEnv, PastVersions, RolloutLimits, play_episode
from llm_envs.rollout.multiplayer import _MAX_KEPT
from llm_envs.tasks.games.guess_number import GuessNumberEnv
from llm_envs.tasks.games.kuhn_poker import KuhnPoker
from llm_envs.tasks.games.two_seat_tic_tac_toe import TwoSeatTicTacToe
from llm_envs.testing import ByteCodec, HashingTokenPolicy, with_failures

PASS, BET = "<answer>pass</answer>", "<answer>bet</answer>"
JACK_QUEEN = {"problem": {"start": 0}}


class BySeat:
    """Each seat plays its own actions: the seat is read from the number of actions so far."""

    def __init__(self, *actions):
        self.actions = actions

    def act(self, env, observation):
        said = observation.split("so far: ")[1].split(".")[0]
        return self.actions[0 if said == "none" else len(said.split(", "))]


def play(env, policy, seat, **settings):
    spec = EpisodeSpec("kuhn", seed=3, group_id=f"g{seat}", options=JACK_QUEEN, seat=seat)
    return asyncio.run(env.play_episode(spec, policy, codec=ByteCodec(), **settings))


def texts(trajectory):
    return [(message.role, message.content) for message in trajectory.messages]


def tokens(trajectory, codec):
    return [codec.decode_reply(row.ids[start:stop]) for row in trajectory.rows for start, stop in row.spans]


class CountedKuhn(KuhnPoker):
    n_resets = 0

    def reset(self, **settings):
        type(self).n_resets += 1
        return super().reset(**settings)


@pytest.fixture
def counted():
    CountedKuhn.n_resets = 0
    return MultiplayerEnv(CountedKuhn)


class TestSeats:
    def test_each_seat_has_its_own_messages_rows_and_reward(self):
        """Jack passes, queen bets, jack calls: seat 0 loses 2 in its second turn, seat 1 wins 2 in its only one."""
        env, policy = MultiplayerEnv(KuhnPoker), BySeat(PASS, BET, BET)
        first, second = play(env, policy, 0), play(env, policy, 1)
        assert texts(first)[1:] == [
            ("user", "Your card: J. Actions so far: none."),
            ("assistant", PASS),
            ("user", "Your card: J. Actions so far: pass, bet."),
            ("assistant", BET),
        ]
        assert texts(second)[1:] == [("user", "Your card: Q. Actions so far: pass."), ("assistant", BET)]
        assert [turn.reward for turn in first.turns] == [0.0, -2.0]
        assert [turn.reward for turn in second.turns] == [2.0]
        assert [tokens(t, ByteCodec()) for t in (first, second)] == [[PASS, BET], [BET]]
        assert [t.group_id for t in (first, second)] == ["g0", "g1"]
        assert [t.metadata["seat"] for t in (first, second)] == [0, 1]
        assert [t.is_success for t in (first, second)] == [False, True]
        end = "Actions so far: pass, bet, bet. The other card:"
        assert first.metadata["final_observation"] == f"Your card: J. {end} Q.\nYou get -2."
        assert second.metadata["final_observation"] == f"Your card: Q. {end} J.\nYou get +2."

    def test_a_seat_can_win_while_it_waits(self):
        """Seat 0 bets and seat 1 folds: seat 0's only turn earns 1."""
        env, policy = MultiplayerEnv(KuhnPoker), BySeat(BET, PASS)
        assert [turn.reward for turn in play(env, policy, 0).turns] == [1.0]
        assert [turn.reward for turn in play(env, policy, 1).turns] == [-1.0]

    def test_a_reward_before_the_first_turn_counts_to_it(self):
        """Seat 1 is paid 0.5 while seat 0 acts first, and then loses 1 by folding."""

        class Early(KuhnPoker):
            def step(self, action):
                observation, reward, terminated, truncated, info = super().step(action)
                info["rewards"] = info["rewards"] if terminated else [0.0, 0.5]
                return observation, reward, terminated, truncated, info

        assert [turn.reward for turn in play(MultiplayerEnv(Early), BySeat(BET, PASS), 1).turns] == [-0.5]

    def test_a_reply_without_a_legal_action_loses_the_most(self):
        first, second = (play(MultiplayerEnv(KuhnPoker), BySeat(PASS, "I call"), seat) for seat in (0, 1))
        assert (first.reward, second.reward, second.terminated) == (2.0, -2.0, True)

    def test_a_seat_without_a_turn_is_unscored(self):
        """Seat 0 ends the game at once, so seat 1 has nothing to learn from; seat 0 does."""
        first, second = (play(MultiplayerEnv(KuhnPoker), BySeat("nonsense"), seat) for seat in (0, 1))
        assert (first.status, first.reward) == ("ok", -2.0)
        assert (second.status, second.error, second.turns) == ("unscored", None, ())
        assert second.metadata["unscored_because"] == "the game was over before this seat's first turn."

    def test_tic_tac_toe_from_the_empty_board(self):
        """X takes the left column while O takes the middle one."""

        class Columns:
            def act(self, env, observation):
                mark = observation[8]
                return env.write_answer(f"{'A' if mark == 'X' else 'B'}{observation.count(mark)}")

        env = MultiplayerEnv(TwoSeatTicTacToe)
        spec = EpisodeSpec("ttt", seed=1)
        first = asyncio.run(env.play_episode(spec, Columns()))
        assert [m.content for m in first.messages if m.role == "assistant"] == [
            "<answer>A1</answer>",
            "<answer>A2</answer>",
            "<answer>A3</answer>",
        ]
        assert (first.reward, len(first.turns)) == (1.0, 3)


class TestSharedGames:
    def test_collected_groups_are_the_seats_of_the_same_games(self, counted):
        """Two groups of four are two seats of four games; the rewards of each game sum to 0."""
        policy = HashingTokenPolicy(ByteCodec(), [PASS, BET])
        groups = Collector(counted, policy, codec=ByteCodec(), progress=False).collect(6, 4)
        assert [[t.metadata["seat"] for t in group] for group in groups] == [[0] * 4, [1] * 4] * 3
        assert CountedKuhn.n_resets == 12
        for first, second in zip(groups[::2], groups[1::2], strict=True):
            assert first.seed == second.seed
            assert [a.reward + b.reward for a, b in zip(first, second, strict=True)] == [0.0] * 4
        assert len({group.group_id for group in groups}) == 6
        assert not counted._games

    def test_one_at_a_time_gives_the_same_episodes(self, counted):
        def collect(n):
            policy = HashingTokenPolicy(ByteCodec(), [PASS, BET])
            return Collector(counted, policy, codec=ByteCodec(), progress=False, max_concurrency=n).collect(8, 2)

        assert collect(1) == collect(64)
        assert CountedKuhn.n_resets == 2 * 8

    def test_new_weights_play_new_games(self, counted):
        policy = HashingTokenPolicy(ByteCodec(), [PASS, BET])
        policy.weight_version = 0
        play(counted, policy, 0)
        policy.weight_version = 1
        play(counted, policy, 1)
        assert CountedKuhn.n_resets == 2

    def test_games_whose_other_seats_are_never_asked_for_are_forgotten(self, counted):
        async def many():
            for member in range(_MAX_KEPT + 30):
                spec = EpisodeSpec("kuhn", seed=3, member=member)
                await counted.play_episode(spec, BySeat(BET, PASS))

        asyncio.run(many())
        assert len(counted._games) <= _MAX_KEPT

    def test_the_last_cancelled_episode_cancels_the_game(self):
        env, policy = MultiplayerEnv(KuhnPoker), HashingTokenPolicy(ByteCodec(), [PASS], latency_s=3600)

        async def cancel():
            seats = [
                asyncio.create_task(env.play_episode(EpisodeSpec("kuhn", seat=seat), policy, codec=ByteCodec()))
                for seat in (0, 1)
            ]
            while not policy.running:
                await asyncio.sleep(0)
            seats[0].cancel()
            await asyncio.gather(seats[0], return_exceptions=True)
            await asyncio.sleep(0.05)
            running = policy.running
            seats[1].cancel()
            await asyncio.gather(*seats, return_exceptions=True)
            return running, policy.running, len(asyncio.all_tasks())

        assert asyncio.run(cancel()) == (1, 0, 1)


class TestOpponents:
    def test_a_fixed_opponent_has_the_other_seat(self):
        """The policy always bets, the opponent always passes: it folds after a bet."""
        env = MultiplayerEnv(KuhnPoker, opponent=RandomPolicy([PASS]))
        groups = Collector(env, HashingTokenPolicy(ByteCodec(), [BET]), codec=ByteCodec(), progress=False).collect(4, 3)
        assert [[t.reward for t in group] for group in groups] == [[1.0] * 3] * 4
        assert [[t.metadata["seat"] for t in group] for group in groups] == [[0] * 3, [1] * 3] * 2
        assert all(tokens(t, ByteCodec()) == [BET] for group in groups for t in group)

    def test_past_versions(self):
        """A copy each two versions, at most two; a policy without past plays itself."""
        policy = HashingTokenPolicy(ByteCodec(), [BET])
        pool = PastVersions(2, size=2, copy_fn=lambda policy: ReplayPolicy([str(policy.weight_version)]))
        chosen = []
        for policy.weight_version in range(8):
            chosen.append([pool.choose(policy, seed) for seed in range(20)])
        assert chosen[0] == [policy] * 20
        names = [sorted({one.actions[0] for one in some}) for some in chosen[1:]]
        assert names == [["0"], ["0"], ["0", "2"], ["2"], ["2", "4"], ["4"], ["4", "6"]]

    def test_what_cannot_be_an_opponent(self):
        with pytest.raises(InvalidConfigError, match="n_seats=1"):
            MultiplayerEnv(GuessNumberEnv)
        with pytest.raises(InvalidConfigError, match="is not a policy"):
            MultiplayerEnv(KuhnPoker, opponent="random")
        with pytest.raises(InvalidConfigError, match="pass codec"):
            MultiplayerEnv(KuhnPoker, opponent=HashingTokenPolicy.__new__(HashingTokenPolicy))
        with pytest.raises(InvalidConfigError, match="no weight_version"):
            PastVersions(1).choose(RandomPolicy(), 0)
        with pytest.raises(InvalidConfigError, match="set workers=0"):
            Collector(MultiplayerEnv(KuhnPoker), BySeat(BET), workers=1)


class TestEnds:
    def test_a_failure_fails_all_seats(self):
        env = MultiplayerEnv(KuhnPoker, opponent=with_failures(RandomPolicy([BET]), 1.0))
        first = play(env, BySeat(PASS), 0)
        assert (first.status, first.error.kind) == ("errored", "RuntimeError")
        assert first.error.message.startswith("seat 1: ")

    def test_a_limit_of_one_seat_truncates_all(self):
        limits = RolloutLimits(max_turns=1)
        first, second = (play(MultiplayerEnv(KuhnPoker), BySeat(PASS, BET, BET), k, limits=limits) for k in (0, 1))
        assert (first.stop_reason, first.truncated, first.reward) == ("max_turns", True, 0.0)
        assert (second.stop_reason, second.truncated, second.reward) == ("env_truncated", True, 0.0)

    def test_an_environment_that_does_not_say_whose_turn_it_is(self):
        class Silent(KuhnPoker):
            def reset(self, **settings):
                return super().reset(**settings)[0], {}

        first = play(MultiplayerEnv(Silent), BySeat(PASS), 0)
        assert (first.status, first.error.kind) == ("errored", "EnvContractError")

    def test_an_episode_with_its_own_runner(self):
        """`play_episode` takes what runs an environment in place of one."""
        from llm_envs.rollout.workers.runner import EnvRunner

        spec = EpisodeSpec("kuhn", seed=3, options=JACK_QUEEN)
        trajectory = asyncio.run(play_episode(EnvRunner(KuhnPoker(), None), spec, BySeat(BET, PASS)))
        assert trajectory.messages[1].content == "Your card: J. Actions so far: none."


class TestSeatedEnv:
    def test_all_chance_is_in_the_initial_states(self):
        env = KuhnPoker()
        dealt = {env.reset(seed=seed)[0][11] + env.state.cards[1] for seed in range(60)}
        assert dealt == {"JQ", "JK", "QJ", "QK", "KJ", "KQ"}

    def test_options(self):
        env = KuhnPoker()
        assert env.reset(options={"problem": {"start": 5}})[0] == "Your card: K. Actions so far: none."
        with pytest.raises(InvalidConfigError, match="n from 0 to 5"):
            env.reset(options={"problem": {"start": 6}})

    def test_a_game_is_abstract(self):
        with pytest.raises(TypeError, match="abstract"):
            SeatedEnv()
