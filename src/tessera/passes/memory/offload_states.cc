#include "tessera/passes/memory/offload_states.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/memory/io_streams.h"
#include "tessera/passes/program/new_events.h"

namespace tessera {
namespace {

// How many pieces have memory at a time.
constexpr std::size_t kSlots = 3;

// How many pieces before its own an instruction begins to fetch.
constexpr std::size_t kAhead = kSlots - 1;

// Of an instruction of the update: the rows [begin, begin + count) of its cut dim.
struct Rows {
  std::size_t instruction = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

std::int64_t element_bytes(const TensorRef& tensor) {
  return static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
}

// The outermost dim of several elements; the last one where there is none.
std::size_t cut_dim(const TensorType& type) {
  const auto found = std::ranges::find_if(type.dims, [](const Dim& dim) { return dim.bound > 1; });
  return found == type.dims.end() ? type.num_dims() - 1
                                  : static_cast<std::size_t>(found - type.dims.begin());
}

TensorRef rows_of(TensorRef tensor, std::size_t dim, const Rows& rows) {
  tensor.offset += rows.begin * tensor.strides[dim] * element_bytes(tensor);
  tensor.type.dims[dim].bound = rows.count;
  return tensor;
}

class Offloading {
 public:
  Offloading(Program program, const OffloadOptions& options)
      : program_(std::move(program)), options_(options), next_event_(first_free_event(program_)) {}

  Program run() {
    const auto update = std::ranges::find_if(program_.segments, [](const Segment& segment) {
      return segment.code.action == Action::kUpdate && segment.code.kind == CodeKind::kWork;
    });
    if (update == program_.segments.end()) {
      return std::move(program_);
    }
    old_ = std::exchange(update->instructions, {});
    choose_buffers();
    if (chosen_.empty()) {
      update->instructions = std::move(old_);
      return std::move(program_);
    }
    cut();
    fetch_stream_ = io_stream(program_, kFetchStream);
    store_stream_ = io_stream(program_, kStoreStream);
    make_memory();
    write();
    set_lives(update->code);
    update->instructions = std::move(new_);
    return std::move(program_);
  }

 private:
  // Where the buffer is to lie.
  Space space_of(const Buffer& buffer) const {
    if (!buffer.persistent || buffer.pool.valid() || buffer.bytes < options_.least_bytes) {
      return Space::kDevice;
    }
    return buffer.category == Category::kOptimizer   ? options_.optimizer
           : buffer.category == Category::kParameter ? options_.parameters
                                                     : Space::kDevice;
  }

  // Buffers of which the update reads or writes more than pieces that begin with pages.
  void exclude_what_the_update_uses_whole() {
    for (const Instruction& instruction : old_) {
      const bool is_adamw = instruction.op->get_if<AdamwAttrs>() != nullptr;
      for (const auto* tensors : {&instruction.operands, &instruction.results}) {
        for (const TensorRef& tensor : *tensors) {
          if (!is_adamw || tensor.offset % kPageBytes != 0 || !view_of(tensor).is_contiguous()) {
            excluded_.insert(tensor.buffer);
          }
        }
      }
    }
  }

  void exclude_what_other_codes_write() {
    for (const Segment& segment : program_.segments) {
      for (const Instruction& instruction : segment.instructions) {
        for (const TensorRef& result : instruction.results) {
          excluded_.insert(result.buffer);
        }
      }
    }
  }

  // What the update does not touch, as frozen parameters, is chosen too: it needs no pieces.
  void choose_buffers() {
    exclude_what_the_update_uses_whole();
    exclude_what_other_codes_write();
    choose_of(Category::kOptimizer, options_.moved.optimizer);
    choose_of(Category::kParameter, options_.moved.parameters);
  }

  // At least so many bytes where there are, and of those before any of them about the same part.
  void choose_of(Category category, std::int64_t bytes) {
    std::vector<BufferId> may_move;
    std::int64_t all = 0;
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (buffer.category == category && space_of(buffer) != Space::kDevice &&
          !excluded_.contains(BufferId::of(i))) {
        may_move.push_back(BufferId::of(i));
        all += buffer.bytes;
      }
    }
    const std::int64_t wanted = std::min(bytes, all);
    const double part = all > 0 ? static_cast<double>(wanted) / static_cast<double>(all) : 0.0;
    std::int64_t seen = 0;
    std::int64_t moved = 0;
    const auto move = [&](BufferId id) {
      Buffer& buffer = program_.buffers[id.at()];
      moved += buffer.bytes;
      chosen_.insert(id);
      buffer.space = space_of(buffer);
      buffer.pages = true;
    };
    std::vector<BufferId> stay;
    for (const BufferId id : may_move) {
      const std::int64_t own = program_[id].bytes;
      seen += own;
      const double half = static_cast<double>(moved) + 0.5 * static_cast<double>(own);
      if (half <= part * static_cast<double>(seen)) {
        move(id);
      } else {
        stay.push_back(id);
      }
    }
    // The smallest that is enough for what is missing.
    std::ranges::stable_sort(stay, {}, [&](BufferId id) { return program_[id].bytes; });
    while (moved < wanted) {
      const auto enough = std::ranges::find_if(
          stay, [&](BufferId id) { return moved + program_[id].bytes >= wanted; });
      const auto next = enough != stay.end() ? enough : std::prev(stay.end());
      move(*next);
      stay.erase(next);
    }
  }

  // The operands of an instruction that it writes and that are elsewhere, by number.
  std::vector<std::size_t> moved(const Instruction& instruction) const {
    std::vector<std::size_t> operands;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
      if (chosen_.contains(instruction.operands[i].buffer)) {
        operands.push_back(i);
      }
    }
    return operands;
  }

  // An instruction whose tensors have no gaps, on as many elements in a row: its dims say nothing.
  static void flatten(Instruction& instruction) {
    const auto is_plain = [](const TensorRef& tensor) {
      return tensor.type.num_dims() == 0 || view_of(tensor).is_contiguous();
    };
    if (!std::ranges::all_of(instruction.operands, is_plain)) {
      return;
    }
    for (auto* tensors : {&instruction.operands, &instruction.results}) {
      for (TensorRef& tensor : *tensors) {
        if (tensor.type.num_dims() > 1) {
          tensor.type.dims = {{.name = "elements", .bound = tensor.type.num_elements()}};
          tensor.strides = {1};
        }
      }
    }
  }

  // Rows so that each piece of what moves begins with a page.
  void cut() {
    for (std::size_t i = 0; i < old_.size(); ++i) {
      if (!moved(old_[i]).empty()) {
        flatten(old_[i]);
      }
      std::int64_t unit = 1;
      std::int64_t row_bytes = 0;  // of the widest
      for (const std::size_t operand : moved(old_[i])) {
        const TensorRef& tensor = old_[i].operands[operand];
        const std::int64_t row = tensor.strides[cut_dim(tensor.type)] * element_bytes(tensor);
        unit = std::lcm(unit, kPageBytes / std::gcd(kPageBytes, row));
        row_bytes = std::max(row_bytes, row);
      }
      if (row_bytes == 0) {
        continue;
      }
      const TensorType& type = old_[i].operands[0].type;
      const std::int64_t all = type.dims[cut_dim(type)].bound;
      const std::int64_t most =
          std::max<std::int64_t>(options_.piece_bytes / row_bytes / unit, 1) * unit;
      for (std::int64_t begin = 0; begin < all; begin += most) {
        pieces_.push_back({.instruction = i, .begin = begin, .count = std::min(most, all - begin)});
      }
    }
  }

  // For each slot, and each tensor of a piece, memory for the largest.
  void make_memory() {
    std::vector<std::int64_t> bytes;
    for (const Rows& piece : pieces_) {
      const Instruction& whole = old_[piece.instruction];
      const std::vector<std::size_t> operands = moved(whole);
      bytes.resize(std::max(bytes.size(), operands.size()), 0);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const TensorRef& tensor = whole.operands[operands[i]];
        bytes[i] =
            std::max(bytes[i], rows_of(tensor, cut_dim(tensor.type), piece).type.num_bytes());
      }
    }
    for (std::size_t slot = 0; slot < std::min(kSlots, pieces_.size()); ++slot) {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        memory_[slot].push_back(BufferId::of(program_.buffers.size()));
        program_.buffers.push_back({.name = format("piece {}.{}", slot, i),
                                    .category = Category::kWorkspace,
                                    .bytes = bytes[i],
                                    .pages = true});
      }
    }
  }

  // The tensors of a piece that move: where they lie, and in the device's memory.
  struct Moved {
    std::vector<TensorRef> elsewhere;
    std::vector<TensorRef> here;
  };

  Moved tensors_of(std::size_t piece) const {
    const Rows& rows = pieces_[piece];
    const Instruction& whole = old_[rows.instruction];
    Moved tensors;
    for (const std::size_t operand : moved(whole)) {
      const TensorRef& tensor = whole.operands[operand];
      const std::vector<BufferId>& memory = memory_[piece % kSlots];
      tensors.elsewhere.push_back(rows_of(tensor, cut_dim(tensor.type), rows));
      tensors.here.push_back(tensors.elsewhere.back());
      tensors.here.back().buffer = memory[tensors.here.size() - 1];
      tensors.here.back().offset = 0;
    }
    return tensors;
  }

  EventId new_event() { return EventId::of(next_event_++); }

  // Once the piece that had the slot before is stored.
  void fetch(std::size_t piece) {
    if (piece >= pieces_.size()) {
      return;
    }
    Moved tensors = tensors_of(piece);
    Instruction instruction = {.op = make_op(FetchAttrs{.count = std::ssize(tensors.here)}),
                               .operands = std::move(tensors.elsewhere),
                               .results = std::move(tensors.here),
                               .stream = fetch_stream_};
    if (piece >= kSlots) {
      instruction.waits.push_back(stored_[piece - kSlots]);
    }
    fetched_.push_back(new_event());
    instruction.signals.push_back(fetched_.back());
    new_.push_back(std::move(instruction));
  }

  void store(std::size_t piece) {
    Moved tensors = tensors_of(piece);
    stored_.push_back(new_event());
    new_.push_back({.op = make_op(StoreAttrs{.count = std::ssize(tensors.here)}),
                    .operands = std::move(tensors.here),
                    .results = std::move(tensors.elsewhere),
                    .stream = store_stream_,
                    .signals = {stored_.back()}});
  }

  // The instruction on the rows of a piece alone.
  Instruction part_of(const Instruction& whole, std::size_t piece) const {
    Instruction part = whole;
    const Rows& rows = pieces_[piece];
    const std::vector<BufferId>& memory = memory_[piece % kSlots];
    std::map<BufferId, BufferId> here;
    for (const std::size_t operand : moved(whole)) {
      here[whole.operands[operand].buffer] = memory[here.size()];
    }
    for (auto* tensors : {&part.operands, &part.results}) {
      for (TensorRef& tensor : *tensors) {
        if (tensor.type.num_dims() > 0) {
          tensor = rows_of(tensor, cut_dim(tensor.type), rows);
        }
        if (const auto found = here.find(tensor.buffer); found != here.end()) {
          tensor.buffer = found->second;
          tensor.offset = 0;
        }
      }
    }
    part.waits = rows.begin == 0 ? whole.waits : std::vector<EventId>();
    part.waits.push_back(fetched_[piece]);
    const bool is_last =
        piece + 1 == pieces_.size() || pieces_[piece + 1].instruction != rows.instruction;
    part.signals = is_last ? whole.signals : std::vector<EventId>();
    return part;
  }

  void write() {
    for (std::size_t piece = 0; piece < kAhead; ++piece) {
      fetch(piece);
    }
    std::size_t piece = 0;
    for (std::size_t i = 0; i < old_.size(); ++i) {
      first_.push_back(std::ssize(new_));
      if (piece == pieces_.size() || pieces_[piece].instruction != i) {
        new_.push_back(old_[i]);
      }
      for (; piece < pieces_.size() && pieces_[piece].instruction == i; ++piece) {
        fetch(piece + kAhead);
        new_.push_back(part_of(old_[i], piece));
        store(piece);
      }
      last_.push_back(std::ssize(new_) - 1);
    }
    // What the pieces' memory is for from here on.
    Instruction fence = {.op = make_op(FenceAttrs{}), .operands = {}, .results = {}};
    fence.waits = {stored_.end() - std::min(std::ssize(stored_), std::ptrdiff_t{kSlots}),
                   stored_.end()};
    new_.push_back(std::move(fence));
  }

  void set_lives(const Code& code) {
    for (Buffer& buffer : program_.buffers) {
      if (buffer.persistent) {
        continue;
      }
      for (Place* const place : {&buffer.begin, &buffer.end}) {
        if (place->code == code) {
          const std::vector<std::ptrdiff_t>& there = place == &buffer.begin ? first_ : last_;
          place->instruction =
              static_cast<std::int32_t>(there[static_cast<std::size_t>(place->instruction)]);
        }
      }
    }
    for (const std::vector<BufferId>& slot : memory_) {
      for (const BufferId id : slot) {
        Buffer& buffer = program_.buffers[id.at()];
        buffer.begin = {.code = code, .instruction = 0};
        buffer.end = {.code = code, .instruction = static_cast<std::int32_t>(new_.size()) - 1};
      }
    }
  }

  Program program_;
  const OffloadOptions& options_;
  std::vector<Instruction> old_;  // of the update
  std::vector<Instruction> new_;
  std::vector<std::ptrdiff_t> first_;  // by old instruction, in new ones
  std::vector<std::ptrdiff_t> last_;
  std::set<BufferId> excluded_;
  std::set<BufferId> chosen_;
  std::vector<Rows> pieces_;
  std::array<std::vector<BufferId>, kSlots> memory_;
  std::vector<EventId> fetched_;  // by piece
  std::vector<EventId> stored_;
  StreamId fetch_stream_;
  StreamId store_stream_;
  std::size_t next_event_;
};

}  // namespace

Program offload_states(Program program, const OffloadOptions& options) {
  return Offloading(std::move(program), options).run();
}

}  // namespace tessera
