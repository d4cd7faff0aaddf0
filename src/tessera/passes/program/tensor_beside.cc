#include "tessera/passes/program/tensor_beside.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/program/new_events.h"
#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {
namespace {

// Streams of collectives of activations, after those of computation and of training state: one, and
// one more for each further axis that rings turn along.
class TensorStreams {
 public:
  StreamId of(const Instruction& instruction) {
    std::string axis;
    if (const auto* shift = instruction.op->get_if<RingShiftAttrs>();
        shift != nullptr && !shift->axes.empty()) {
      axis = shift->axes.front().name;
    }
    const auto found = std::ranges::find(axes_, axis);
    if (found == axes_.end()) {
      axes_.push_back(axis);
      return StreamId::of(kFirst + axes_.size() - 1);
    }
    return StreamId::of(kFirst + static_cast<std::size_t>(found - axes_.begin()));
  }

  // "tensor", "tensor2", ..
  void add_to(Program& program) const {
    if (program.streams.size() == 1 && !axes_.empty()) {
      program.streams.emplace_back("comm");
    }
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      program.streams.push_back(i == 0 ? "tensor" : format("tensor{}", i + 1));
    }
  }

 private:
  static constexpr std::size_t kFirst = 2;

  std::vector<std::string> axes_;
};

template <class... Attrs>
bool is_any(const Op& op) {
  return ((op.get_if<Attrs>() != nullptr) || ...);
}

bool is_product(const Instruction& instruction) {
  return is_any<MatmulAttrs, ScaledMatmulAttrs, BatchedProductAttrs>(*instruction.op);
}

// What takes as long as a collective.
bool is_long(const Instruction& instruction) {
  return instruction.stream == StreamId{0} &&
         (is_product(instruction) || is_any<AttentionAttrs,
                                            AttentionBackwardAttrs,
                                            AttentionPartAttrs,
                                            AttentionPartBackwardAttrs>(*instruction.op));
}

// Its place in the order holds for others, too.
bool is_bound(const Instruction& instruction) {
  return instruction.stream != StreamId{0} || instruction.only_last || !instruction.waits.empty() ||
         !instruction.signals.empty();
}

// Of activations: sums of magnitudes and of norms' gradients are soon done, and nothing long is to
// be kept for them.
bool is_of_activations(const Instruction& instruction, TensorTraffic traffic) {
  const bool is_wanted =
      is_any<RingShiftAttrs>(*instruction.op) ||
      (traffic == TensorTraffic::kAll &&
       is_any<AllGatherAttrs, ReduceScatterAttrs, AllReduceAttrs>(*instruction.op));
  return is_wanted && instruction.results[0].type.num_dims() >= 2;
}

// The work of a code, in all of its variants, which keep step.
class TensorWork {
 public:
  // The variant that is called first comes last: the others touch what it touches, and maybe more.
  TensorWork(Program& program,
             std::vector<SegmentId> variants,
             TensorTraffic traffic,
             TensorStreams& streams)
      : program_(program),
        variants_(std::move(variants)),
        traffic_(traffic),
        streams_(streams),
        order_(front().size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  // Has something long stand between collectives and their readers: what comes before a collective
  // and makes nothing for it, or else a product that may come after it.
  void hide() {
    for (std::size_t i = 0; i < front().size(); ++i) {
      const std::size_t reader = reader_of(i);
      if (!may_move(i) || !can_wait(reader) || is_hidden(i, reader)) {
        continue;
      }
      if (const auto before = work_before(i)) {
        std::vector<std::size_t> order = {i};
        for (std::size_t k = *before; k < i; ++k) {
          order.push_back(k);
        }
        arrange(*before, order);
      } else if (const auto product = product_before(i)) {
        moved_.insert(order_[*product]);
        arrange(*product, put_last(*product, i));
      }
    }
  }

  // Moves collectives to their streams; `next_event` is the first that is free.
  void move_collectives(std::size_t& next_event) {
    for (std::size_t i = front().size(); i-- > 0;) {
      const std::size_t reader = may_move(i) ? reader_of(i) : i;
      if (may_move(i) && can_wait(reader) && is_hidden(i, reader)) {
        const StreamId stream = streams_.of(front()[i]);
        moved_to_[i] = {.stream = stream, .readers = readers_of(i, stream, reader)};
      }
    }
    for (const auto& [i, moved] : moved_to_) {
      const EventId event = EventId::of(next_event++);
      for (const SegmentId variant : variants_) {
        std::vector<Instruction>& all = program_.segments[variant.at()].instructions;
        all[i].stream = moved.stream;
        all[i].signals.push_back(event);
        for (const std::size_t reader : moved.readers) {
          all[reader].waits.push_back(event);
        }
      }
    }
  }

  // Sets the lives that begin or end here, of buffers that nothing here uses, too: what the stream
  // of training state has from elsewhere lives until what comes after its end waits for it.
  void set_lives() const {
    std::vector<std::size_t> now(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      now[order_[i]] = i;
    }
    const Code& code = program_[variants_[0]].code;
    const std::map<BufferId, Use> all = uses();
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      Buffer& buffer = program_.buffers[i];
      const auto found = all.find(BufferId::of(i));
      const Use* const use = found == all.end() ? nullptr : &found->second;
      if (!buffer.persistent && buffer.begin.code == code) {
        set_begin(buffer.begin, use, now);
      }
      if (!buffer.persistent && buffer.end.code == code) {
        set_end(buffer.end, use, now);
      }
    }
  }

 private:
  // A collective on a stream of its own, and who waits for it, the last of these on stream 0.
  struct Moved {
    StreamId stream;
    std::vector<std::size_t> readers;
  };

  // Of a buffer, by instructions of the code.
  struct Use {
    std::size_t first = 0;
    std::size_t end = 0;   // the last, or who waits for it
    bool travels = false;  // on the stream of training state
  };

  // `now`: by where an instruction was, where it is. No use: nothing here uses the buffer.
  static void set_begin(Place& begin, const Use* use, std::span<const std::size_t> now) {
    const auto from = now.subspan(static_cast<std::size_t>(begin.instruction));
    begin.instruction = static_cast<std::int32_t>(use == nullptr ? *std::ranges::min_element(from)
                                                                 : std::min(from[0], use->first));
  }

  static void set_end(Place& end, const Use* use, std::span<const std::size_t> now) {
    const auto from = now.subspan(static_cast<std::size_t>(end.instruction));
    std::size_t last = use == nullptr ? from[0] : std::max(from[0], use->end);
    if (use == nullptr || use->travels) {
      last = std::max(last + 1, from.size() == 1 ? now.size() : from[1]) - 1;
    }
    end.instruction = static_cast<std::int32_t>(last);
  }

  std::map<BufferId, Use> uses() const {
    std::map<BufferId, Use> uses;
    for (std::size_t i = 0; i < front().size(); ++i) {
      const auto found = moved_to_.find(i);
      const std::size_t end = found == moved_to_.end() ? i : found->second.readers.back();
      for_each_buffer(front()[i], [&](BufferId id) {
        Use& use = uses.try_emplace(id, Use{.first = i}).first->second;
        use.end = std::max(use.end, end);
        use.travels = use.travels || is_comm(front()[i]);
      });
    }
    return uses;
  }

  const std::vector<Instruction>& front() const {
    return program_.segments[variants_[0].at()].instructions;
  }

  bool may_move(std::size_t i) const {
    return is_of_activations(front()[i], traffic_) && !is_bound(front()[i]);
  }

  // The first instruction after number `i` that may not run beside it, or the end: of those that
  // stay where they are.
  std::size_t reader_of(std::size_t i) const {
    std::size_t reader = i + 1;
    while (reader < front().size() &&
           (moved_to_.contains(reader) || !conflict(front()[i], front()[reader]))) {
      ++reader;
    }
    return reader;
  }

  // Who waits for number `i` on a stream of its own: `reader`, after which all streams go on, and
  // before it the first that may not run beside it of each other one of these streams.
  std::vector<std::size_t> readers_of(std::size_t i, StreamId stream, std::size_t reader) const {
    std::vector<std::size_t> readers;
    std::set<StreamId> streams = {stream};
    for (auto next = moved_to_.upper_bound(i); next != moved_to_.lower_bound(reader); ++next) {
      if (conflict(front()[i], front()[next->first]) &&
          streams.insert(next->second.stream).second) {
        readers.push_back(next->first);
      }
    }
    readers.push_back(reader);
    return readers;
  }

  // Whether there is one, on the stream that all others follow.
  bool can_wait(std::size_t reader) const {
    return reader < front().size() && front()[reader].stream == StreamId{0};
  }

  bool is_hidden(std::size_t i, std::size_t reader) const {
    return std::any_of(front().begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       front().begin() + static_cast<std::ptrdiff_t>(reader),
                       is_long);
  }

  // The last long instruction before number `i`, where that may come before it.
  std::optional<std::size_t> work_before(std::size_t i) const {
    for (std::size_t k = 1; k <= i && !conflict(front()[i - k], front()[i]); ++k) {
      if (is_long(front()[i - k])) {
        return i - k;
      }
    }
    return std::nullopt;
  }

  // The last product before number `i`, of its layer or the one beside it, that may come after it.
  std::optional<std::size_t> product_before(std::size_t i) const {
    for (std::size_t k = 1; k <= i && is_near(front()[i - k], front()[i]); ++k) {
      const std::size_t product = i - k;
      if (is_product(front()[product]) && !is_bound(front()[product]) &&
          !moved_.contains(order_[product]) && !put_last(product, i).empty()) {
        return product;
      }
    }
    return std::nullopt;
  }

  // The order of [product, i] in which the product comes last, with the collectives of training
  // state from the first one on that waits for it: gradients travel when they are made, and a wait
  // for one is a wait for all before it. Empty where something else would come too early or too
  // late.
  std::vector<std::size_t> put_last(std::size_t product, std::size_t i) const {
    std::vector<std::size_t> order;
    std::vector<std::size_t> last = {product};
    for (std::size_t k = product + 1; k <= i; ++k) {
      const Instruction& next = front()[k];
      const bool is_behind = is_comm(next) && last.size() > 1;
      const bool waits = is_behind || std::ranges::any_of(last, [&](std::size_t of) {
                           return conflict(front()[of], next) || awaits(next, front()[of]);
                         });
      if (waits && (!is_comm(next) || !next.waits.empty())) {
        return {};
      }
      (waits ? last : order).push_back(k);
    }
    order.insert(order.end(), last.begin(), last.end());
    return order;
  }

  static bool awaits(const Instruction& instruction, const Instruction& of) {
    return std::ranges::find_first_of(instruction.waits, of.signals) != instruction.waits.end();
  }

  static bool is_near(const Instruction& a, const Instruction& b) {
    return a.layer < 0 || b.layer < 0 || std::abs(a.layer - b.layer) <= 1;
  }

  // From number `first` on come those of the order, in all variants.
  void arrange(std::size_t first, const std::vector<std::size_t>& order) {
    const auto arrange_in = [&]<class T>(std::vector<T>& all) {
      std::vector<T> arranged;
      arranged.reserve(order.size());
      for (const std::size_t from : order) {
        arranged.push_back(std::move(all[from]));
      }
      std::ranges::move(arranged, all.begin() + static_cast<std::ptrdiff_t>(first));
    };
    arrange_in(order_);
    for (const SegmentId variant : variants_) {
      arrange_in(program_.segments[variant.at()].instructions);
    }
  }

  Program& program_;
  std::vector<SegmentId> variants_;
  TensorTraffic traffic_;
  TensorStreams& streams_;
  std::vector<std::size_t> order_;         // by place, which instruction it was
  std::set<std::size_t> moved_;            // products, by where they were
  std::map<std::size_t, Moved> moved_to_;  // by collective on a stream of its own
};

// Of forward and backward, in the order in which variants are called last.
std::map<Code, std::vector<SegmentId>> called_work(const Program& program) {
  std::map<Code, std::vector<SegmentId>> work;
  std::set<SegmentId> seen;
  for (const Call& call : program.calls) {
    const Code& code = program[call.segment].code;
    const bool is_step = code.action == Action::kUpdate || code.action == Action::kStart;
    if (code.kind == CodeKind::kWork && !is_step && seen.insert(call.segment).second) {
      std::vector<SegmentId>& variants = work[code];
      variants.insert(variants.begin(), call.segment);
    }
  }
  return work;
}

}  // namespace

Program tensor_beside(Program program, TensorTraffic traffic) {
  std::size_t next_event = first_free_event(program);
  TensorStreams streams;
  for (const auto& variants : std::views::values(called_work(program))) {
    TensorWork work(program, variants, traffic, streams);
    work.hide();
    work.move_collectives(next_event);
    work.set_lives();
  }
  streams.add_to(program);
  return program;
}

}  // namespace tessera
