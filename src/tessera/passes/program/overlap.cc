#include "tessera/passes/program/overlap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/passes/program/overlap/code_body.h"
#include "tessera/passes/program/overlap/comm_stream.h"
#include "tessera/passes/program/overlap/gathers.h"
#include "tessera/passes/program/overlap/lives.h"
#include "tessera/passes/program/overlap/waits.h"

namespace tessera {
namespace {

// A call before the codes are cut: which code, and which of its variants.
struct WorkCall {
  std::size_t code = 0;
  std::size_t variant = 0;
  std::int32_t microbatch = 0;
};

struct CalledCodes {
  std::vector<CodeBody> codes;  // in the order in which they are first called
  std::vector<WorkCall> calls;
};

// The variant that is called first comes last.
CalledCodes collect_work(const Program& program) {
  CalledCodes work;
  std::map<Code, std::size_t> number;
  std::map<SegmentId, std::size_t> variant;
  for (const Call& call : program.calls) {
    const Code& code = program[call.segment].code;
    const auto [found, is_new] = number.try_emplace(code, work.codes.size());
    if (is_new) {
      work.codes.push_back({.code = code, .variants = {}});
    }
    CodeBody& body = work.codes[found->second];
    if (variant.try_emplace(call.segment, body.variants.size()).second) {
      body.variants.push_back(program[call.segment]);
      TESSERA_CHECK(
          body.variants.front().instructions.size() == body.variants.back().instructions.size(),
          "segment {} is no variant of {}",
          body.variants.back().name,
          body.variants.front().name);
    }
    work.calls.push_back(
        {.code = found->second, .variant = variant[call.segment], .microbatch = call.microbatch});
  }
  for (CodeBody& body : work.codes) {
    std::ranges::reverse(body.variants);
  }
  for (WorkCall& call : work.calls) {
    call.variant = work.codes[call.code].variants.size() - 1 - call.variant;
  }
  return work;
}

bool is_update(const CodeBody& body) {
  return body.code.action == Action::kUpdate;
}

// Which codes are called after other work of the step.
std::vector<bool> find_followers(const CalledCodes& work) {
  std::vector<bool> follows(work.codes.size(), false);
  for (std::size_t i = 1; i < work.calls.size(); ++i) {
    follows[work.calls[i].code] = true;
  }
  return follows;
}

// Of code number `own`.
UsedElsewhere used_elsewhere(const CalledCodes& work, std::size_t own, const Program& program) {
  UsedElsewhere used = {.any = std::vector<bool>(program.buffers.size(), false), .later = {}};
  for (std::size_t i = 0; i < work.codes.size(); ++i) {
    if (i == own || is_update(work.codes[i])) {
      continue;
    }
    for (std::int32_t k = 0; k < work.codes[i].size(); ++k) {
      for_each_buffer(work.codes[i][k], [&](BufferId id) { used.any[id.at()] = true; });
    }
  }
  for (const Buffer& buffer : program.buffers) {
    const Code& end = buffer.end.code;
    used.later.push_back(!buffer.persistent && end.action != Action::kUpdate &&
                         end != work.codes[own].code);
  }
  return used;
}

// Cuts each code where the calls before and after it have something to come in between.
void choose_cuts(const CalledCodes& work, std::int64_t layers, std::vector<OverlappedCode>& codes) {
  for (std::size_t i = 0; i < work.calls.size(); ++i) {
    OverlappedCode& code = codes[work.calls[i].code];
    if (is_update(code.body)) {
      continue;
    }
    if (i > 0 && codes[work.calls[i - 1].code].fence) {
      code.fence_cut = code.body.begin_of_block(layers + 1).value_or(code.body.size());
    }
    if (i + 1 < work.calls.size() && !codes[work.calls[i + 1].code].gathers.empty()) {
      code.gather_cut =
          code.body.begin_of_block(std::max<std::int64_t>(code.body.num_blocks() - layers, 0));
    }
  }
}

// Writes the segments and calls of a program anew.
class Calls {
 public:
  Calls(Program& program, const std::vector<OverlappedCode>& codes)
      : program_(program), codes_(codes), segments_(codes.size()) {
    program_.calls.clear();
    std::vector<Segment> all = std::exchange(program_.segments, {});
    for (std::size_t i = 0; i < codes.size(); ++i) {
      add_segments(codes[i], segments_[i]);
    }
    // Transfers, which nothing calls yet.
    std::ranges::copy_if(all, std::back_inserter(program_.segments), [](const Segment& segment) {
      return segment.code.kind != CodeKind::kWork;
    });
  }

  void add(const std::vector<WorkCall>& calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const WorkCall* const before = i > 0 ? &calls[i - 1] : nullptr;
      const WorkCall* const next = i + 1 < calls.size() ? &calls[i + 1] : nullptr;
      if (before == nullptr) {
        call(segments_[calls[i].code].gathers, calls[i].microbatch);
      }
      add_work(before, calls[i], next);
    }
    if (!calls.empty()) {
      call(segments_[calls.back().code].fence, calls.back().microbatch);
    }
  }

 private:
  struct Segments {
    std::vector<std::vector<SegmentId>> pieces;  // by variant
    std::optional<SegmentId> gathers;
    std::optional<SegmentId> fence;
  };

  void add_segments(const OverlappedCode& code, Segments& segments) {
    if (!code.gathers.empty()) {
      segments.gathers = add_segment(code_of(code.body.code, CodeKind::kGather), code.gathers);
    }
    for (const Segment& variant : code.body.variants) {
      std::vector<SegmentId>& pieces = segments.pieces.emplace_back();
      std::vector<std::int32_t> cuts = code.pieces();
      cuts.push_back(code.body.size());
      for (std::size_t piece = 0; piece + 1 < cuts.size(); ++piece) {
        pieces.push_back(add_piece(variant, piece, cuts[piece], cuts[piece + 1]));
      }
    }
    if (code.fence) {
      segments.fence = add_segment(code_of(code.body.code, CodeKind::kFence), {*code.fence});
    }
  }

  SegmentId add_segment(const Code& code, std::vector<Instruction> instructions) {
    program_.segments.push_back(
        {.name = to_string(code), .code = code, .instructions = std::move(instructions)});
    return SegmentId::of(program_.segments.size() - 1);
  }

  SegmentId add_piece(const Segment& variant,
                      std::size_t piece,
                      std::int32_t begin,
                      std::int32_t end) {
    Code code = variant.code;
    code.piece = static_cast<std::int32_t>(piece);
    const SegmentId id = add_segment(
        code, {variant.instructions.begin() + begin, variant.instructions.begin() + end});
    const std::string whole = to_string(variant.code);  // "backward" of "backward_first"
    if (variant.name.starts_with(whole)) {
      program_.segments.back().name += variant.name.substr(whole.size());
    }
    return id;
  }

  // The fence of the call before, and the gathers for the next one, come in between its pieces.
  void add_work(const WorkCall* before, const WorkCall& work, const WorkCall* next) {
    const OverlappedCode& code = codes_[work.code];
    const std::vector<SegmentId>& pieces = segments_[work.code].pieces[work.variant];
    const std::vector<std::int32_t> begins = code.pieces();
    const std::int32_t fence_at = code.fence_cut.value_or(0);
    const std::int32_t gather_at = code.gather_cut.value_or(code.body.size());
    bool is_fenced = before == nullptr;
    bool is_gathered = next == nullptr;
    const auto come_to = [&](std::int32_t place) {
      if (!is_gathered && gather_at <= place) {
        call(segments_[next->code].gathers, next->microbatch);
        is_gathered = true;
      }
      if (!is_fenced && fence_at <= place) {
        call(segments_[before->code].fence, before->microbatch);
        is_fenced = true;
      }
    };
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      come_to(begins[piece]);
      call(pieces[piece], work.microbatch);
    }
    come_to(code.body.size());
  }

  void call(std::optional<SegmentId> segment, std::int32_t microbatch) {
    if (segment) {
      program_.calls.push_back({.segment = *segment, .microbatch = microbatch});
    }
  }

  Program& program_;
  const std::vector<OverlappedCode>& codes_;
  std::vector<Segments> segments_;
};

}  // namespace

Program overlap(Program program, std::int64_t layers) {
  TESSERA_REQUIRE(layers >= 1,
                  ErrorCode::kInvalidArgument,
                  "collectives {} layers ahead: expected at least 1",
                  layers);
  if (!choose_comm_stream(program)) {
    return program;
  }
  program.streams = {"compute", "comm"};
  CalledCodes work = collect_work(program);
  reduce_before_update(work.codes, program.num_microbatches == 1);
  const std::vector<bool> follows = find_followers(work);
  for (CodeBody& body : work.codes) {
    body.find_blocks();
    if (!is_update(body)) {
      issue_gathers_early(body, layers);
    }
  }
  std::vector<std::vector<Instruction>> ahead(work.codes.size());
  for (std::size_t i = 0; i < work.codes.size(); ++i) {
    if (follows[i] && !is_update(work.codes[i])) {
      ahead[i] = take_gathers_ahead(work.codes, work.codes[i], layers);
    }
  }
  std::vector<OverlappedCode> codes;
  std::vector<std::vector<Finish>> finishes;
  for (std::size_t i = 0; i < work.codes.size(); ++i) {
    codes.push_back({.body = work.codes[i], .gathers = std::move(ahead[i])});
  }
  std::int32_t next_event = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    finishes.push_back(place_waits(codes[i], layers, used_elsewhere(work, i, program), next_event));
  }
  choose_cuts(work, layers, codes);
  set_lives(program, codes, finishes);
  Calls(program, codes).add(work.calls);
  return program;
}

}  // namespace tessera
