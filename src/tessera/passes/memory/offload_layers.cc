#include "tessera/passes/memory/offload_layers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/memory/io_streams.h"
#include "tessera/passes/program/new_events.h"
#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {
namespace {

// How many layers before its own a fetch begins, and after it a store has ended.
constexpr std::int64_t kLayersAhead = 1;

constexpr StreamId kOwn = {0};

// Where an instruction stands: in which piece of a body, and there.
struct Site {
  std::size_t piece = 0;
  std::size_t instruction = 0;
};

// The codes of one action and kind, one after the other as they are called: what comes in between
// is of other actions.
struct Body {
  std::vector<std::vector<Segment*>> pieces;  // their variants, which keep step
  std::vector<Site> sites;                    // of all instructions
  std::vector<std::int64_t> blocks;           // by site: of one layer after the other
  std::vector<std::vector<EventId>> waits;    // by site, as they were

  std::size_t size() const { return sites.size(); }

  CodeKind kind() const { return pieces.front().front()->code.kind; }

  const Instruction& at(std::size_t i, std::size_t variant = 0) const {
    return pieces[sites[i].piece][variant]->instructions[sites[i].instruction];
  }

  template <class Act>
  void for_each_variant(std::size_t i, const Act& act) const {
    for (Segment* const segment : pieces[sites[i].piece]) {
      act(segment->instructions[sites[i].instruction]);
    }
  }

  // The first site of `block`, or of the first one after it.
  std::size_t begin_of(std::int64_t block) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(blocks, block) - blocks.begin());
  }
};

// An instruction that is put in before a site of a body, or at its end.
struct Insertion {
  std::size_t site = 0;
  Instruction instruction;
  std::vector<BufferId> begins = {};  // to live with it
  std::vector<BufferId> ends = {};
};

TensorRef whole(BufferId id, const Buffer& buffer) {
  return {.buffer = id,
          .type = {.dtype = DType::kU8, .dims = {{.name = "bytes", .bound = buffer.bytes}}},
          .strides = {1}};
}

class Layers {
 public:
  Layers(Program program, const OffloadOptions& options)
      : program_(std::move(program)), options_(options) {
    next_event_ = first_free_event(program_);
    find_bodies();
    find_uses();
    insertions_.resize(bodies_.size());
    fences_.resize(bodies_.size());
  }

  Program run() {
    const std::size_t num_buffers = program_.buffers.size();
    for (std::size_t i = 0; i < num_buffers; ++i) {
      const BufferId id = BufferId::of(i);
      if (program_[id].persistent && program_[id].space != Space::kDevice) {
        fetch_state(id);
      } else if (options_.activations != Space::kDevice &&
                 (options_.all_activations || program_[id].leaves) && may_leave(id)) {
        offload(id);
      }
    }
    for (Buffer& buffer : program_.buffers) {
      buffer.leaves = false;
    }
    for (std::size_t b = 0; b < bodies_.size(); ++b) {
      write(b);
    }
    return std::move(program_);
  }

 private:
  using Sites = std::vector<std::size_t>;

  void find_bodies() {
    std::map<std::tuple<Action, std::int32_t, CodeKind>, std::size_t> numbers;
    for (Segment& segment : program_.segments) {
      const Code& code = segment.code;
      if (code.action == Action::kUpdate) {
        continue;
      }
      const auto [found, is_new] =
          numbers.try_emplace({code.action, code.chunk, code.kind}, bodies_.size());
      if (is_new) {
        bodies_.emplace_back();
      }
      auto& pieces = bodies_[found->second].pieces;
      const auto piece = static_cast<std::size_t>(code.piece);
      pieces.resize(std::max(pieces.size(), piece + 1));
      pieces[piece].push_back(&segment);
    }
    std::ranges::for_each(bodies_, find_sites);
  }

  static void find_sites(Body& body) {
    std::int64_t block = -1;
    std::optional<std::int32_t> layer;
    for (std::size_t piece = 0; piece < body.pieces.size(); ++piece) {
      const std::size_t size = body.pieces[piece].front()->instructions.size();
      for (std::size_t i = 0; i < size; ++i) {
        body.sites.push_back({.piece = piece, .instruction = i});
        const Instruction& instruction = body.at(body.sites.size() - 1);
        if (!layer || (instruction.stream == kOwn && instruction.layer != *layer)) {
          layer = instruction.layer;
          ++block;
        }
        body.blocks.push_back(block);
        body.waits.push_back(instruction.waits);
      }
    }
  }

  void find_uses() {
    uses_.resize(program_.buffers.size());
    for (std::size_t b = 0; b < bodies_.size(); ++b) {
      for (std::size_t i = 0; i < bodies_[b].size(); ++i) {
        bodies_[b].for_each_variant(i, [&](const Instruction& instruction) {
          for_each_buffer(instruction, [&](BufferId id) {
            Sites& sites = uses_[id.at()][b];
            if (sites.empty() || sites.back() != i) {
              sites.push_back(i);
            }
          });
        });
      }
    }
  }

  EventId new_event() { return EventId::of(next_event_++); }

  Place place_of(std::size_t b, std::size_t site) const {
    const Site& at = bodies_[b].sites[site];
    return {.code = bodies_[b].pieces[at.piece].front()->code,
            .instruction = static_cast<std::int32_t>(at.instruction)};
  }

  // Memory of the device for what `id` holds elsewhere.
  BufferId add_memory(BufferId id) {
    const Buffer& of = program_[id];
    Buffer memory = {.name = format("fetched {}", of.name),
                     .category = of.category,
                     .bytes = of.bytes,
                     .pages = true};
    program_.buffers.push_back(std::move(memory));
    return BufferId::of(program_.buffers.size() - 1);
  }

  void wait_at(std::size_t b, std::size_t site, EventId event) {
    bodies_[b].for_each_variant(
        site, [&](Instruction& instruction) { instruction.waits.push_back(event); });
  }

  // What the first stream waits for next of what has begun before: the memory of what has ended is
  // free only then.
  static std::vector<EventId> waits_from(const Body& body, std::size_t site) {
    const std::size_t own = own_site(body, site);
    if (own == body.size()) {
      return {};
    }
    std::vector<EventId> waits = body.waits[own];
    for (std::size_t i = site; i < own; ++i) {
      for (const EventId later : body.at(i).signals) {
        std::erase(waits, later);
      }
    }
    return waits;
  }

  // The first one from there on of the first stream; the body's size where there is none.
  static std::size_t own_site(const Body& body, std::size_t site) {
    while (site < body.size() && body.at(site).stream != kOwn) {
      ++site;
    }
    return site;
  }

  // Fetches what `from` holds to `memory` before the layer of the first of `uses`, which it is for.
  void fetch(BufferId from, BufferId memory, std::size_t b, std::span<const std::size_t> uses) {
    Body& body = bodies_[b];
    const EventId there = new_event();
    const StreamId stream = io_stream(program_, kFetchStream);
    const std::size_t site = body.begin_of(body.blocks[uses.front()] - kLayersAhead);
    insertions_[b].push_back({.site = site,
                              .instruction = {.op = make_op(FetchAttrs{}),
                                              .operands = {whole(from, program_[from])},
                                              .results = {whole(memory, program_[memory])},
                                              .stream = stream,
                                              .layer = body.at(uses.front()).layer,
                                              .waits = waits_from(body, site),
                                              .signals = {there}},
                              .begins = {memory}});
    std::set<StreamId> waiting;
    for (const std::size_t use : uses) {
      if (waiting.insert(body.at(use).stream).second) {
        wait_at(b, use, there);
      }
    }
  }

  // From now on they use `to` in place of `from`.
  void replace(BufferId from, BufferId to, std::size_t b, std::span<const std::size_t> uses) {
    for (const std::size_t use : uses) {
      bodies_[b].for_each_variant(use, [&](Instruction& instruction) {
        for (auto* tensors : {&instruction.operands, &instruction.results}) {
          for (TensorRef& tensor : *tensors) {
            tensor.buffer = tensor.buffer == from ? to : tensor.buffer;
          }
        }
      });
    }
  }

  // A buffer that another stream than the first uses last, at `use`, which then makes `done`
  // happen, lives until the first stream waits for that: once the layer after has begun to end, or
  // at the body's end.
  void end_after(BufferId id, std::size_t b, std::size_t use, EventId done) {
    const Body& body = bodies_[b];
    const std::size_t end = own_site(body, body.begin_of(body.blocks[use] + 1 + kLayersAhead));
    if (end < body.size()) {
      wait_at(b, end, done);
      program_.buffers[id.at()].end = place_of(b, end);
    } else {
      fences_[b].instruction.waits.push_back(done);
      fences_[b].ends.push_back(id);
    }
  }

  // Once for each stretch of layers that use it.
  void fetch_state(BufferId id) {
    for (const auto& [b, sites] : std::map(uses_[id.at()])) {
      const Body& body = bodies_[b];
      for (std::size_t first = 0; first < sites.size();) {
        std::size_t end = first + 1;
        while (end < sites.size() &&
               body.blocks[sites[end]] - body.blocks[sites[end - 1]] <= kLayersAhead) {
          ++end;
        }
        const std::span<const std::size_t> uses = std::span(sites).subspan(first, end - first);
        const BufferId memory = add_memory(id);
        fetch(id, memory, b, uses);
        replace(id, memory, b, uses);
        if (body.at(uses.back()).stream == kOwn) {
          program_.buffers[memory.at()].end = place_of(b, uses.back());
        } else if (body.kind() == CodeKind::kWork) {
          const EventId done = new_event();
          body.for_each_variant(
              uses.back(), [&](Instruction& instruction) { instruction.signals.push_back(done); });
          end_after(memory, b, uses.back(), done);
        } else {
          // Gathers ahead of a call, for which nothing waits there: of few layers.
          keep_always(memory);
        }
        first = end;
      }
    }
  }

  void keep_always(BufferId id) {
    Buffer& buffer = program_.buffers[id.at()];
    buffer.persistent = true;
    buffer.category = Category::kWorkspace;  // it is no state
    always_.insert(id);
  }

  bool is_of(std::size_t b, Action action) const {
    return bodies_[b].pieces.front().front()->code.action == action;
  }

  // Whether a result is all of the buffer.
  bool makes_all(BufferId id, std::size_t b, std::size_t site) const {
    const auto is_all = [&](const TensorRef& result) {
      return result.buffer == id && result.offset == 0 && view_of(result).is_contiguous() &&
             result.type.num_bytes() == program_[id].bytes;
    };
    bool all = true;
    bodies_[b].for_each_variant(site, [&](const Instruction& instruction) {
      all = all && std::ranges::any_of(instruction.results, is_all);
    });
    return all;
  }

  // Whether forward makes all of it, one of its later actions uses it, and nothing else does.
  bool may_leave(BufferId id) const {
    const Buffer& buffer = program_[id];
    const auto& uses = uses_[id.at()];
    const Code& begin = buffer.begin.code;
    const Code& end = buffer.end.code;
    if (buffer.persistent || buffer.category != Category::kActivation ||
        buffer.bytes < options_.least_bytes || uses.size() != 2 ||
        begin.action != Action::kForward || end.action == Action::kForward ||
        !is_of_microbatches(end.action) || begin.chunk != end.chunk ||
        begin.kind != CodeKind::kWork || end.kind != CodeKind::kWork) {
      return false;
    }
    bool is_made = false;
    for (const auto& [b, sites] : uses) {
      for (const std::size_t site : sites) {
        if (bodies_[b].at(site).stream != kOwn) {
          return false;
        }
        is_made = is_made || (is_of(b, Action::kForward) && makes_all(id, b, site));
      }
    }
    return is_made;
  }

  // Whether every call of a body is followed by one of another, of the same microbatch.
  bool is_followed_by(std::size_t b, std::size_t other) const {
    const auto& calls = program_.calls;
    const auto is_of_body = [&](const Call& call, std::size_t body) {
      const Code& code = program_[call.segment].code;
      const Code& of = bodies_[body].pieces.front().front()->code;
      return code.action == of.action && code.chunk == of.chunk && code.kind == of.kind;
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!is_of_body(calls[i], b)) {
        continue;
      }
      std::size_t next = i + 1;
      while (next < calls.size() && is_of_body(calls[next], b) &&
             calls[next].microbatch == calls[i].microbatch) {
        ++next;
      }
      if (next == calls.size() || !is_of_body(calls[next], other) ||
          calls[next].microbatch != calls[i].microbatch) {
        return false;
      }
    }
    return true;
  }

  // Whether something that is last used at one site of forward and first at one of backward would
  // be fetched as soon as it is stored.
  bool is_back_at_once(std::size_t forward,
                       std::size_t last_use,
                       std::size_t backward,
                       std::size_t first_use) const {
    const Body& made = bodies_[forward];
    const Body& read = bodies_[backward];
    return made.begin_of(made.blocks[last_use] + 1 + kLayersAhead) == made.size() &&
           read.begin_of(read.blocks[first_use] - kLayersAhead) == 0 &&
           is_followed_by(forward, backward);
  }

  void offload(BufferId id) {
    const auto uses = uses_[id.at()];
    const auto& [first, first_sites] = *uses.begin();
    const auto& [second, second_sites] = *uses.rbegin();
    const bool in_order = is_of(first, Action::kForward);
    const std::size_t forward = in_order ? first : second;
    const std::size_t backward = in_order ? second : first;
    const Sites& made = in_order ? first_sites : second_sites;
    const Sites& read = in_order ? second_sites : first_sites;
    if (is_back_at_once(forward, made.back(), backward, read.front())) {
      return;
    }
    Buffer elsewhere = program_[id];
    elsewhere.name = format("stored {}", elsewhere.name);
    elsewhere.space = options_.activations;
    elsewhere.pages = true;
    const BufferId memory = add_memory(id);
    program_.buffers[memory.at()].end = elsewhere.end;
    elsewhere.end = place_of(backward, read.front());
    const BufferId stored = BufferId::of(program_.buffers.size());
    program_.buffers.push_back(std::move(elsewhere));
    program_.buffers[id.at()].pool = {};
    program_.buffers[id.at()].pages = true;
    store(id, stored, forward, made.back());
    fetch(stored, memory, backward, read);
    replace(id, memory, backward, read);
  }

  // After its last use; its memory is free once it is stored.
  void store(BufferId id, BufferId stored, std::size_t b, std::size_t last_use) {
    const Body& body = bodies_[b];
    const EventId done = new_event();
    const StreamId stream = io_stream(program_, kStoreStream);
    insertions_[b].push_back({.site = last_use + 1,
                              .instruction = {.op = make_op(StoreAttrs{}),
                                              .operands = {whole(id, program_[id])},
                                              .results = {whole(stored, program_[stored])},
                                              .stream = stream,
                                              .layer = body.at(last_use).layer,
                                              .signals = {done}},
                              .begins = {stored}});
    end_after(id, b, last_use, done);
  }

  // What is written of a body: where its instructions and the insertions come.
  struct Written {
    std::vector<std::vector<std::int32_t>> moved;                // by piece, old places to new ones
    std::vector<std::pair<const Insertion*, Place>> insertions;  // in order
  };

  // Puts the insertions in, and moves the places of lives.
  void write(std::size_t b) {
    const Body& body = bodies_[b];
    std::vector<Insertion>& insertions = insertions_[b];
    if (Insertion& fence = fences_[b]; !fence.ends.empty()) {
      fence.site = body.size();
      fence.instruction.op = make_op(FenceAttrs{});
      insertions.push_back(std::move(fence));
    }
    if (insertions.empty()) {
      return;
    }
    std::ranges::stable_sort(insertions, {}, &Insertion::site);
    Written written;
    std::span<const Insertion> left = insertions;
    std::size_t site = 0;
    for (std::size_t piece = 0; piece < body.pieces.size(); ++piece) {
      site = write_piece(body, piece, site, left, written);
    }
    move_lives(body, written.moved);
    for (const auto& [insertion, place] : written.insertions) {
      for (const BufferId id : insertion->begins) {
        if (!always_.contains(id)) {
          program_.buffers[id.at()].begin = place;
        }
      }
      for (const BufferId id : insertion->ends) {
        program_.buffers[id.at()].end = place;
      }
    }
  }

  // With those of the insertions `left` that come before its sites and, in the last piece, at the
  // body's end. Returns the first site of the next.
  static std::size_t write_piece(const Body& body,
                                 std::size_t piece,
                                 std::size_t site,
                                 std::span<const Insertion>& left,
                                 Written& written) {
    const std::vector<Segment*>& variants = body.pieces[piece];
    std::vector<std::vector<Instruction>> all(variants.size());
    const auto place = [&] { return static_cast<std::int32_t>(all.front().size()); };
    const auto insert_before = [&](std::size_t at) {
      for (; !left.empty() && left.front().site == at; left = left.subspan(1)) {
        written.insertions.emplace_back(
            &left.front(), Place{.code = variants.front()->code, .instruction = place()});
        for (std::vector<Instruction>& variant : all) {
          variant.push_back(left.front().instruction);
        }
      }
    };
    std::vector<std::int32_t>& moved = written.moved.emplace_back();
    const std::size_t size = variants.front()->instructions.size();
    for (std::size_t i = 0; i < size; ++i) {
      insert_before(site + i);
      moved.push_back(place());
      for (std::size_t v = 0; v < variants.size(); ++v) {
        all[v].push_back(std::move(variants[v]->instructions[i]));
      }
    }
    if (piece + 1 == body.pieces.size()) {
      insert_before(site + size);
    }
    for (std::size_t v = 0; v < variants.size(); ++v) {
      variants[v]->instructions = std::move(all[v]);
    }
    return site + size;
  }

  void move_lives(const Body& body, const std::vector<std::vector<std::int32_t>>& moved) {
    std::map<Code, std::size_t> pieces;
    for (std::size_t piece = 0; piece < body.pieces.size(); ++piece) {
      pieces[body.pieces[piece].front()->code] = piece;
    }
    for (Buffer& buffer : program_.buffers) {
      for (Place* const place : {&buffer.begin, &buffer.end}) {
        const auto found = buffer.persistent ? pieces.end() : pieces.find(place->code);
        if (found != pieces.end()) {
          place->instruction = moved[found->second][static_cast<std::size_t>(place->instruction)];
        }
      }
    }
  }

  Program program_;
  const OffloadOptions& options_;
  std::vector<Body> bodies_;
  std::vector<std::map<std::size_t, Sites>> uses_;  // by buffer and body
  std::vector<std::vector<Insertion>> insertions_;  // by body
  std::vector<Insertion> fences_;                   // by body, of those that have one
  std::set<BufferId> always_;
  std::size_t next_event_ = 0;
};

}  // namespace

Program offload_layers(Program program, const OffloadOptions& options) {
  return Layers(std::move(program), options).run();
}

}  // namespace tessera
