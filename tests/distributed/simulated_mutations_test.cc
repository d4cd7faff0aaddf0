// Programs of ranks with one thing wrong in what they do together: the simulation comes to no end
// where verify_ranks() refuses them, at a place that it names, and to its end where it does not.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/op.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

// One thing wrong with a program.
struct WrongTalk {
  std::string kind;
  std::string what;
  std::function<void(Program& program)> make;
};

bool talks(const Program& program, const Segment& segment, std::size_t index) {
  return !instruction_calls(program, segment, index).empty();
}

bool talks(const Program& program, const Segment& segment) {
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    if (talks(program, segment, i)) {
      return true;
    }
  }
  return false;
}

// Each call that talks left out, and each two of them in turn swapped.
std::vector<WrongTalk> wrong_calls(const Program& program) {
  std::vector<std::size_t> calls;
  for (std::size_t call = 0; call < program.calls.size(); ++call) {
    if (talks(program, program[program.calls[call].segment])) {
      calls.push_back(call);
    }
  }
  std::vector<WrongTalk> wrong;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::size_t call = calls[i];
    wrong.push_back(
        {.kind = "call left out", .what = format("{}", call), .make = [=](Program& changed) {
           changed.calls.erase(changed.calls.begin() + static_cast<std::ptrdiff_t>(call));
         }});
    if (i > 0) {
      const std::size_t before = calls[i - 1];
      wrong.push_back({.kind = "calls swapped",
                       .what = format("{} and {}", before, call),
                       .make = [=](Program& changed) {
                         std::swap(changed.calls[before], changed.calls[call]);
                       }});
    }
  }
  return wrong;
}

// The same of the instructions of each segment.
std::vector<WrongTalk> wrong_instructions(const Program& program) {
  std::vector<WrongTalk> wrong;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    std::optional<std::size_t> before;
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      if (!talks(program, segment, i)) {
        continue;
      }
      wrong.push_back({.kind = "instruction left out",
                       .what = format("{} of {}", i, segment.name),
                       .make = [=](Program& changed) {
                         auto& all = changed.segments[s].instructions;
                         all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
                       }});
      if (before) {
        wrong.push_back({.kind = "instructions swapped",
                         .what = format("{} and {} of {}", *before, i, segment.name),
                         .make = [s, i, first = *before](Program& changed) {
                           auto& all = changed.segments[s].instructions;
                           std::swap(all[first], all[i]);
                         }});
      }
      before = i;
    }
  }
  return wrong;
}

// Those of a run, of which one rank does other things than its equals.
class WrongRanks {
 public:
  explicit WrongRanks(const RankRun& run)
      : mesh_(run.mesh), cluster_(cluster_of(run.mesh)), programs_(plain_programs(run)) {
    program_of_ = program_of_ranks(mesh_, programs_.size());
  }

  const std::vector<std::size_t>& program_of() const { return program_of_; }

  const Program& program_of_rank(std::size_t rank) const { return programs_[program_of_[rank]]; }

  // By what came of it, how often. All of `rank`'s.
  void check(std::size_t rank, std::map<std::string, int>& found) {
    for (const auto& list : {wrong_calls, wrong_instructions}) {
      for (const WrongTalk& wrong : list(program_of_rank(rank))) {
        SCOPED_TRACE(format("rank {}, {}: {}", rank, wrong.kind, wrong.what));
        programs_.push_back(program_of_rank(rank));
        wrong.make(programs_.back());
        const std::size_t own = std::exchange(program_of_[rank], programs_.size() - 1);
        expect_alike(wrong.kind, found);
        program_of_[rank] = own;
        programs_.pop_back();
      }
    }
  }

 private:
  // Of the error of a run; nothing without one.
  template <class Run>
  static std::optional<std::string> error_text(const Run& run) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
      return error.what();
    }
    return std::nullopt;
  }

  void expect_alike(const std::string& kind, std::map<std::string, int>& found) const {
    const std::optional<std::string> refused = error_text([&] {
      std::vector<CollectiveSequence> classes;
      for (const Program& program : programs_) {
        classes.push_back(collective_calls(program));
      }
      verify_ranks(mesh_, classes, program_of_);
    });
    const std::optional<std::string> stuck = error_text([&] {
      std::vector<TimedProgram> timed;
      for (const Program& program : programs_) {
        timed.push_back(time_program(program, mesh_, cluster_, CollectiveStyle::kOwn));
      }
      simulate({.mesh = mesh_, .cluster = cluster_, .programs = timed, .program_of = program_of_});
    });
    ASSERT_EQ(stuck.has_value(), refused.has_value())
        << "verified: " << refused.value_or("") << "\nsimulated: " << stuck.value_or("");
    ++found[format("{}, {}", kind, refused ? "refused" : "taken")];
    if (refused && stuck) {
      ++found[refused->find("do not match") != std::string::npos ? "unequal"
              : refused->find("misses") != std::string::npos     ? "missing"
                                                                 : "circle"];
      expect_common_place(*refused, *stuck);
    }
  }

  // By program, stream and place, where ranks are that an error speaks of.
  std::set<std::string> places_in(const std::string& text) const {
    static const std::regex kPlace(R"(rank (\d+) on stream (\S+) at (segment [^:]*: \w+))");
    std::set<std::string> places;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), kPlace);
         it != std::sregex_iterator();
         ++it) {
      places.insert(format("program {} on {} at {}",
                           program_of_.at(std::stoul((*it)[1].str())),
                           (*it)[2].str(),
                           (*it)[3].str()));
    }
    return places;
  }

  void expect_common_place(const std::string& refused, const std::string& stuck) const {
    const std::set<std::string> expected = places_in(refused);
    const std::set<std::string> places = places_in(stuck);
    EXPECT_FALSE(expected.empty()) << refused;
    EXPECT_TRUE(std::ranges::any_of(
        expected, [&](const std::string& place) { return places.contains(place); }))
        << "verified: " << refused << "\nsimulated: " << stuck;
  }

  Mesh mesh_;
  Cluster cluster_;
  std::vector<Program> programs_;
  std::vector<std::size_t> program_of_;
};

// The first rank of each program, of the last one alone where all have one.
std::map<std::string, int> check_all(const RankRun& run) {
  WrongRanks ranks(run);
  std::map<std::string, int> found;
  const std::vector<std::size_t> program_of = ranks.program_of();
  if (program_of.back() == 0) {
    ranks.check(program_of.size() - 1, found);
    return found;
  }
  for (std::size_t rank = 0; rank < program_of.size(); ++rank) {
    if (rank == 0 || program_of[rank] != program_of[rank - 1]) {
      ranks.check(rank, found);
    }
  }
  return found;
}

RankRun small_run(const Mesh& mesh) {
  RankRun run = {.model = odd_llama(2),
                 .mesh = mesh,
                 .microbatches = 3,
                 .global_batch = 12,
                 .sequence_length = 6};
  run.model.kv_heads = run.model.heads;
  return run;
}

TEST(SimulatedMutations, OfDataRanksEndWhereVerifiedOnesDo) {
  RankRun run = small_run(virtual_mesh(4));
  run.placement = preset("fsdp", run.mesh).placement;
  run.overlap = true;
  std::map<std::string, int> found = check_all(run);
  EXPECT_GT(found["unequal"], 0);
  EXPECT_GT(found["call left out, refused"], 0);
  EXPECT_GT(found["calls swapped, refused"], 0);
  EXPECT_GT(found["instruction left out, refused"], 0);
  EXPECT_GT(found["instructions swapped, refused"], 0);
}

TEST(SimulatedMutations, OfTensorRanksEndWhereVerifiedOnesDo) {
  RankRun run = small_run(virtual_mesh(4, 2));
  run.placement = preset("ddp", run.mesh).placement;
  run.sequence_parallel = true;
  std::map<std::string, int> found = check_all(run);
  EXPECT_GT(found["unequal"], 0);
  EXPECT_GT(found["instructions swapped, refused"], 0);
}

TEST(SimulatedMutations, OfPipelinesEndWhereVerifiedOnesDo) {
  std::map<std::string, int> found;
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
    for (const std::int64_t data : {1, 2}) {
      SCOPED_TRACE(format("{}, {} data ranks", name(schedule), data));
      RankRun run = small_run(local_mesh({.data = data, .pipeline = 2}));
      run.model = odd_llama(4);
      run.microbatches = 4;
      run.global_batch = 8;
      run.pipeline.schedule = schedule;
      run.pipeline.layers.assign(static_cast<std::size_t>(2 * default_chunks(schedule)),
                                 2 / default_chunks(schedule));
      run.placement = preset(data > 1 ? "fsdp" : "ddp", run.mesh).placement;
      run.overlap = data > 1;
      for (const auto& [what, count] : check_all(run)) {
        found[what] += count;
      }
    }
  }
  for (const char* const what : {"unequal", "missing", "circle", "calls swapped, refused"}) {
    EXPECT_GT(found[what], 0) << what;
  }
  EXPECT_GT(found["calls swapped, taken"], 0) << "on different streams";
}

}  // namespace
}  // namespace tessera
