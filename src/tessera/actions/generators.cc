#include "tessera/actions/generators.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/actions/as_index.h"

namespace tessera {
namespace {

// Writes the row of a rank whose microbatches rise, and the slices of each in forwards, and fall in
// backwards. Actions of microbatches that the table lacks are left out.
class RowWriter {
 public:
  RowWriter(ActionTable& table, std::int64_t rank)
      : microbatches_(table.microbatches),
        slices_(table.slices),
        stages_(stages_of_rank(table, rank)),
        next_forward_(stages_.size()),
        next_backward_(stages_.size()),
        row_(table.rows[as_index(rank)]) {}

  void forward(std::int64_t chunk) {
    write(chunk, ActionKind::kForward, next_forward_[as_index(chunk)]++);
  }

  void backward(std::int64_t chunk) {
    write(chunk, ActionKind::kBackward, next_backward_[as_index(chunk)]++);
  }

  // Its weight gradient is pending from here on.
  void input_gradient(std::int64_t chunk) {
    const std::int64_t unit = next_backward_[as_index(chunk)]++;
    write(chunk, ActionKind::kInputGradient, unit);
    pending_.emplace_back(chunk, unit);
  }

  // The oldest of those that are pending, of all chunks or of one.
  void weight_gradient(std::optional<std::int64_t> of_chunk = std::nullopt) {
    const auto found = std::ranges::find_if(
        pending_, [&](const auto& pending) { return !of_chunk || pending.first == *of_chunk; });
    write(found->first, ActionKind::kWeightGradient, found->second);
    pending_.erase(found);
  }

  std::int64_t num_pending() const { return static_cast<std::int64_t>(pending_.size()); }

 private:
  // `unit`: a slice's number among those of all microbatches.
  void write(std::int64_t chunk, ActionKind kind, std::int64_t unit) {
    const std::int64_t microbatch = unit / slices_;
    const std::int64_t place = unit % slices_;
    const bool rises = kind == ActionKind::kForward;
    if (microbatch < microbatches_) {
      row_.push_back(
          {stages_[as_index(chunk)], kind, microbatch, rises ? place : slices_ - 1 - place});
    }
  }

  std::int64_t microbatches_;
  std::int64_t slices_;
  std::vector<std::int64_t> stages_;
  std::vector<std::int64_t> next_forward_;
  std::vector<std::int64_t> next_backward_;
  std::vector<std::pair<std::int64_t, std::int64_t>> pending_;  // chunk, unit
  std::vector<StageAction>& row_;
};

ActionTable empty_table(std::int64_t ranks, std::int64_t stages, std::int64_t microbatches) {
  return {.ranks = ranks,
          .stages = stages,
          .microbatches = microbatches,
          .rank_of_stage = std::vector<std::int64_t>(as_index(stages)),
          .rows = std::vector<std::vector<StageAction>>(as_index(ranks))};
}

ActionTable looped_table(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches) {
  ActionTable table = empty_table(ranks, ranks * chunks, microbatches);
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    table.rank_of_stage[as_index(stage)] = stage % ranks;
  }
  return table;
}

ActionTable v_table(std::int64_t ranks, std::int64_t microbatches) {
  ActionTable table = empty_table(ranks, 2 * ranks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    table.rank_of_stage[as_index(rank)] = rank;
    table.rank_of_stage[as_index(2 * ranks - 1 - rank)] = rank;
  }
  return table;
}

// A row of forwards that fill the pipeline, forwards and backwards in turn, and backwards that
// drain it. Chunks take turns of `round` microbatches each.
struct Turns {
  std::int64_t chunks = 1;
  std::int64_t round = 1;
  std::int64_t fill = 0;
  // With weight gradients apart: this many stay pending until the end, one more between an input
  // gradient and the weight gradient that follows it.
  std::optional<std::int64_t> pending = std::nullopt;
};

void write_turns(const Turns& turns, std::int64_t num_forwards, RowWriter& row) {
  const auto chunk_of = [&](std::int64_t i) { return i / turns.round % turns.chunks; };
  const std::int64_t fill = std::min(turns.fill, num_forwards);
  for (std::int64_t i = 0; i < fill; ++i) {
    row.forward(chunk_of(i));
  }
  for (std::int64_t i = 0; i < num_forwards; ++i) {
    if (fill + i < num_forwards) {
      row.forward(chunk_of(fill + i));
    }
    const std::int64_t chunk = turns.chunks - 1 - chunk_of(i);
    if (!turns.pending) {
      row.backward(chunk);
      continue;
    }
    row.input_gradient(chunk);
    if (row.num_pending() > *turns.pending) {
      row.weight_gradient();
    }
  }
  while (row.num_pending() > 0) {
    row.weight_gradient();
  }
}

template <class Write>
void times(std::int64_t count, const Write& write) {
  for (std::int64_t i = 0; i < count; ++i) {
    write();
  }
}

// Chunk 0 is the rank's stage on the way down the V, 1 that on the way up. `microbatches`: at least
// 2 * ranks - 1.
void write_zb_v(std::int64_t ranks, std::int64_t rank, std::int64_t microbatches, RowWriter& row) {
  const std::int64_t to_turn = ranks - rank;  // ranks from this one to the turn
  const auto both_gradients = [&](std::int64_t chunk) {
    row.input_gradient(chunk);
    row.weight_gradient(chunk);
  };
  times(2 * to_turn - 1, [&] { row.forward(0); });
  times(rank, [&] {
    row.forward(1);
    row.forward(0);
  });
  times(to_turn, [&] {
    row.forward(1);
    both_gradients(1);
  });
  const std::int64_t forwards_left = microbatches - (2 * ranks - 1 - rank);
  for (std::int64_t i = 0; i < microbatches - ranks; ++i) {
    if (i < forwards_left) {
      row.forward(0);
    }
    both_gradients(0);
    row.forward(1);
    both_gradients(1);
  }
  times(rank, [&] {
    row.input_gradient(0);
    row.input_gradient(1);
  });
  times(to_turn, [&] { both_gradients(0); });
  times(rank, [&] { row.weight_gradient(1); });
  times(rank, [&] { row.weight_gradient(0); });
}

void write_dualpipe_v(std::int64_t ranks,
                      std::int64_t rank,
                      std::int64_t microbatches,
                      RowWriter& row) {
  const std::int64_t after = ranks - 1 - rank;  // ranks after this one, down to the turn
  times(2 * after, [&] { row.forward(0); });
  times(rank + 1, [&] {
    row.forward(0);
    row.forward(1);
  });
  times(after, [&] {
    row.input_gradient(1);
    row.weight_gradient();
    row.forward(1);
  });
  times(microbatches - 2 * ranks + rank + 1, [&] {
    row.forward(0);
    row.backward(1);
    row.forward(1);
    row.backward(0);
  });
  times(after, [&] {
    row.backward(1);
    row.forward(1);
    row.backward(0);
  });
  // Backwards of both chunks in turn; the second half of them leaves its weight gradients for
  // later.
  for (std::int64_t i = 0; i < 2 * (rank + 1); ++i) {
    const std::int64_t chunk = 1 - i % 2;
    if (i <= rank) {
      row.backward(chunk);
    } else {
      row.input_gradient(chunk);
    }
  }
  times(after, [&] {
    row.weight_gradient();
    row.input_gradient(0);
  });
  times(rank + 1, [&] { row.weight_gradient(); });
}

// One stage per rank: forwards fill the pipeline, `fill` of them the last rank, and more each rank
// before it.
ActionTable filled_table(std::int64_t ranks,
                         std::int64_t microbatches,
                         std::int64_t slices,
                         std::int64_t fill) {
  ActionTable table = looped_table(ranks, 1, microbatches);
  table.slices = slices;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_turns({.fill = fill + ranks - 1 - rank}, microbatches * slices, row);
  }
  return table;
}

}  // namespace

std::int64_t num_rounds(std::int64_t ranks, std::int64_t microbatches) {
  return std::max<std::int64_t>(1, microbatches / ranks);
}

ActionTable gpipe(std::int64_t ranks, std::int64_t microbatches, std::int64_t slices) {
  return filled_table(ranks, microbatches, slices, microbatches * slices);
}

// The last rank has all slices of a microbatch before it goes back to the last of them.
ActionTable one_f_one_b(std::int64_t ranks, std::int64_t microbatches, std::int64_t slices) {
  return filled_table(ranks, microbatches, slices, slices - 1);
}

ActionTable interleaved(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches) {
  ActionTable table = looped_table(ranks, chunks, microbatches);
  const std::int64_t round = microbatches / num_rounds(ranks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_turns(
        {.chunks = chunks, .round = round, .fill = (chunks - 1) * round + 2 * (ranks - 1 - rank)},
        chunks * microbatches,
        row);
  }
  return table;
}

ActionTable looped_bfs(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches) {
  ActionTable table = looped_table(ranks, chunks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_turns({.chunks = chunks, .round = microbatches, .fill = chunks * microbatches},
                chunks * microbatches,
                row);
  }
  return table;
}

ActionTable zb_h1(std::int64_t ranks, std::int64_t microbatches) {
  ActionTable table = looped_table(ranks, 1, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_turns({.fill = ranks - 1 - rank, .pending = rank}, microbatches, row);
  }
  return table;
}

ActionTable interleaved_zb(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches) {
  ActionTable table = looped_table(ranks, chunks, microbatches);
  const std::int64_t round = microbatches / num_rounds(ranks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_turns({.chunks = chunks,
                 .round = round,
                 .fill = (chunks - 1) * round + ranks - 1 - rank,
                 .pending = rank},
                chunks * microbatches,
                row);
  }
  return table;
}

ActionTable zb_v(std::int64_t ranks, std::int64_t microbatches) {
  ActionTable table = v_table(ranks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_zb_v(ranks, rank, std::max(microbatches, 2 * ranks - 1), row);
  }
  return table;
}

ActionTable dualpipe_v(std::int64_t ranks, std::int64_t microbatches) {
  ActionTable table = v_table(ranks, microbatches);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RowWriter row(table, rank);
    write_dualpipe_v(ranks, rank, microbatches, row);
  }
  return table;
}

}  // namespace tessera
