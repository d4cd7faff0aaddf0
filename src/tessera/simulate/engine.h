#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <string>
#include <vector>

#include "tessera/simulate/class_links.h"
#include "tessera/simulate/resources.h"
#include "tessera/simulate/simulate.h"

namespace tessera {

// Plays a step, event by event.
class SimulationEngine {
 public:
  // Borrows the ranks for its life.
  SimulationEngine(const RankPrograms& ranks, const SimulationOptions& options);

  StepTimeline run();

 private:
  enum class LaneState : std::uint8_t {
    kIdle,     // before its next step
    kRunning,  // in a kernel
    kWaiting,  // at a leg to which others have not come
    kTalking,  // in a leg
    kEnded,
  };

  struct LaneStep {
    StepIndex step = 0;
    std::uint32_t before = 0;  // how many steps of stream 0 were issued before it
    Ticks issued = 0;          // by a host that waits for nothing
  };

  // A stream of the ranks of a class.
  struct Lane {
    std::size_t c = 0;
    std::size_t stream = 0;
    const std::vector<LaneStep>* steps = nullptr;
    std::size_t next = 0;  // of its steps
    LaneState state = LaneState::kIdle;
    std::uint32_t piece = 0;  // of its program's, where it is in a step
    Ticks since = 0;          // when it came to the piece
    Ticks wake = -1;          // when the host issues its next step, where it was waited for
  };

  // A kernel of a class, or a leg of all that meet in it.
  struct Activity {
    std::vector<std::size_t> lanes;
    bool moves = false;   // a leg after its latency
    bool shares = false;  // whether others may slow it
    Ticks began = 0;
    double left = 0.0;  // ticks that it takes from `updated` at full rate
    std::int64_t rate = Resources::kFull;
    Ticks updated = 0;
    std::uint32_t version = 0;
  };

  // An activity ends, or a host issues a step.
  struct Event {
    static constexpr std::uint32_t kWakes = static_cast<std::uint32_t>(-1);

    Ticks time = 0;
    std::uint32_t of = 0;       // the activity, or the class
    std::uint32_t version = 0;  // of the activity

    friend bool operator>(const Event& a, const Event& b) { return a.time > b.time; }
  };

  struct ClassState {
    const TimedProgram* program = nullptr;
    std::size_t first_lane = 0;
    std::size_t num_lanes = 0;
    bool changed = false;
    Ticks held = 0;               // by how much waiting for transfers has made its host later
    std::int64_t num_native = 0;  // lanes at legs by a library, which take part of the device
  };

  void add_class(std::size_t c);

  ClassTimeline& timeline(const Lane& lane) { return timeline_.classes[lane.c]; }

  const IssueStep& step_of(const Lane& lane) const;
  const Piece& piece_of(const Lane& lane) const;

  void mark(std::size_t c);
  void settle();
  void advance(std::size_t c);
  bool may_start(Lane& lane);
  void hold_host(std::size_t c, Ticks issued, StepIndex awaited);
  void start(std::size_t index);
  void enter_piece(std::size_t index);
  void leave_piece(std::size_t index);
  void end_step(std::size_t index);

  void run_kernel(std::size_t index);
  void meet(std::size_t index);
  std::vector<std::size_t> members_of(std::size_t index) const;
  void require_equal(std::size_t index, const std::vector<std::size_t>& members) const;
  void talk(const std::vector<std::size_t>& members);

  void begin(std::vector<std::size_t> lanes, Ticks alone, Resources::Demands demands);
  void run_for(std::size_t slot, Ticks alone, Resources::Demands demands);
  void complete(std::size_t slot);
  void finish(std::size_t slot);
  void schedule(std::size_t slot);
  void refresh_rates();
  Resources::Demands kernel_demands(const Lane& lane, const Piece& piece) const;
  Resources::Demands leg_demands(const std::vector<std::size_t>& lanes) const;
  void take_device(const Lane& lane, std::int64_t sign);
  void record(const Lane& lane, SpanKind kind, Ticks begin, Ticks end);
  std::string describe(const Lane& lane) const;
  [[noreturn]] void report_stuck() const;

  const RankPrograms& ranks_;
  const SimulationOptions& options_;
  RankClasses classes_;
  Resources resources_;
  ClassResources class_resources_;
  std::int64_t native_share_ = 0;
  std::vector<std::vector<std::vector<LaneStep>>> steps_;  // by program and stream
  std::vector<ClassState> states_;
  std::vector<Lane> lanes_;
  std::vector<Activity> activities_;
  std::vector<std::size_t> free_activities_;
  std::vector<std::size_t> changed_;  // classes
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Ticks now_ = 0;
  StepTimeline timeline_;
};

}  // namespace tessera
