#include "tessera/simulate/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

constexpr Ticks kNotYet = -1;

void add_demand(Resources::Demands& demands, Resources::Id resource, std::int64_t amount) {
  if (amount == 0) {
    return;
  }
  const auto found = std::ranges::find(demands, resource, &Resources::Demand::resource);
  if (found == demands.end()) {
    demands.push_back({.resource = resource, .amount = amount});
  } else {
    found->amount += amount;
  }
}

}  // namespace

SimulationEngine::SimulationEngine(const RankPrograms& ranks, const SimulationOptions& options)
    : ranks_(ranks),
      options_(options),
      classes_(find_classes(ranks, options)),
      class_resources_(ranks, classes_, options.threads, resources_) {
  const DeviceSpec& device = ranks.cluster.device;
  native_share_ = std::llround(device.curve.value_or(kUsualCurve).comm_share *
                               static_cast<double>(Piece::kWhole));
  for (const TimedProgram& program : ranks.programs) {
    auto& streams = steps_.emplace_back(program.program->streams.size());
    std::uint32_t before = 0;
    Ticks issued = 0;
    for (const IssueStep& step : program.order.steps) {
      const bool talks = step.works && std::ranges::any_of(program.pieces_of(step), &Piece::is_leg);
      const bool joins = std::ranges::any_of(program.pieces_of(step), &Piece::in_bucket);
      issued += talks && !joins ? options.issue_leg : 0;
      streams[step.stream].push_back(
          {.step = program.order.index_of(step), .before = before, .issued = issued});
      before += step.stream == 0 ? 1 : 0;
      issued += joins ? 0 : options.issue;
    }
  }
  for (std::size_t c = 0; c < classes_.classes.size(); ++c) {
    add_class(c);
  }
  timeline_.spread = 1.0 + options.spread * standard_maximum(std::ssize(classes_.class_of));
}

void SimulationEngine::add_class(std::size_t c) {
  const RankClasses::Class& each = classes_.classes[c];
  const TimedProgram& program = ranks_.programs[each.program];
  const std::size_t num_steps = program.order.steps.size();
  const std::size_t num_streams = program.program->streams.size();
  timeline_.classes.push_back({.program = each.program,
                               .first_rank = each.first_rank,
                               .num_ranks = each.num_ranks,
                               .begin = std::vector<Ticks>(num_steps, kNotYet),
                               .end = std::vector<Ticks>(num_steps, kNotYet),
                               .streams = std::vector<std::vector<Span>>(num_streams)});
  states_.push_back({.program = &program, .first_lane = lanes_.size(), .num_lanes = num_streams});
  for (std::size_t stream = 0; stream < num_streams; ++stream) {
    lanes_.push_back({.c = c, .stream = stream, .steps = &steps_[each.program][stream]});
  }
}

const IssueStep& SimulationEngine::step_of(const Lane& lane) const {
  return states_[lane.c].program->order.steps[(*lane.steps)[lane.next].step];
}

const Piece& SimulationEngine::piece_of(const Lane& lane) const {
  return states_[lane.c].program->pieces[lane.piece];
}

StepTimeline SimulationEngine::run() {
  for (std::size_t c = 0; c < states_.size(); ++c) {
    mark(c);
  }
  settle();
  refresh_rates();
  while (!events_.empty()) {
    now_ = events_.top().time;
    while (!events_.empty() && events_.top().time == now_) {
      const Event event = events_.top();
      events_.pop();
      if (event.version == Event::kWakes) {
        mark(event.of);
      } else if (event.version == activities_[event.of].version) {
        complete(event.of);
      }
    }
    settle();
    refresh_rates();
  }
  if (std::ranges::any_of(lanes_,
                          [](const Lane& lane) { return lane.state != LaneState::kEnded; })) {
    report_stuck();
  }
  timeline_.class_of = classes_.class_of;
  for (const ClassTimeline& each : timeline_.classes) {
    timeline_.step = std::max(timeline_.step, each.last());
  }
  return std::move(timeline_);
}

void SimulationEngine::mark(std::size_t c) {
  if (!std::exchange(states_[c].changed, true)) {
    changed_.push_back(c);
  }
}

// Until nothing more happens at this time.
void SimulationEngine::settle() {
  while (!changed_.empty()) {
    const std::size_t c = changed_.back();
    changed_.pop_back();
    states_[c].changed = false;
    advance(c);
  }
}

void SimulationEngine::advance(std::size_t c) {
  const ClassState& state = states_[c];
  for (std::size_t lane = state.first_lane; lane < state.first_lane + state.num_lanes; ++lane) {
    while (may_start(lanes_[lane])) {
      start(lane);
    }
  }
}

bool SimulationEngine::may_start(Lane& lane) {
  if (lane.state != LaneState::kIdle) {
    return false;
  }
  if (lane.next == lane.steps->size()) {
    lane.state = LaneState::kEnded;
    return false;
  }
  const ClassState& state = states_[lane.c];
  const LaneStep& next = (*lane.steps)[lane.next];
  if (lane.stream != 0 && lanes_[state.first_lane].next < next.before) {
    return false;
  }
  const std::vector<Ticks>& ends = timeline(lane).end;
  const auto has_ended = [&](StepIndex step) { return ends[step] != kNotYet; };
  if (!std::ranges::all_of(state.program->order.waits_of(step_of(lane)), has_ended)) {
    return false;
  }
  for (const StepIndex awaited : state.program->order.waits_of(step_of(lane))) {
    hold_host(lane.c, next.issued, awaited);
  }
  const Ticks issued = state.held + next.issued;
  if (issued <= now_) {
    return true;
  }
  if (std::exchange(lane.wake, issued) != issued) {
    events_.push(
        {.time = issued, .of = static_cast<std::uint32_t>(lane.c), .version = Event::kWakes});
  }
  return false;
}

// A host waits for what its device sends and receives before it issues what comes after that.
void SimulationEngine::hold_host(std::size_t c, Ticks issued, StepIndex awaited) {
  ClassState& state = states_[c];
  const TimedProgram& program = *state.program;
  if (options_.issue > 0 &&
      std::ranges::any_of(program.pieces_of(program.order.steps[awaited]), &Piece::is_transfer)) {
    state.held = std::max(state.held, timeline_.classes[c].end[awaited] - issued);
  }
}

void SimulationEngine::start(std::size_t index) {
  Lane& lane = lanes_[index];
  const IssueStep& step = step_of(lane);
  const TimedProgram& program = *states_[lane.c].program;
  timeline(lane).begin[(*lane.steps)[lane.next].step] = now_;
  lane.piece = program.first_piece[step.place];
  if (step.works) {
    enter_piece(index);
  } else {
    end_step(index);
  }
}

void SimulationEngine::enter_piece(std::size_t index) {
  Lane& lane = lanes_[index];
  const TimedProgram& program = *states_[lane.c].program;
  if (lane.piece == program.first_piece[step_of(lane).place + 1]) {
    end_step(index);
    return;
  }
  lane.since = now_;
  if (!piece_of(lane).is_leg()) {
    run_kernel(index);
    return;
  }
  lane.state = LaneState::kWaiting;
  take_device(lane, 1);
  meet(index);
}

void SimulationEngine::leave_piece(std::size_t index) {
  Lane& lane = lanes_[index];
  if (piece_of(lane).is_leg()) {
    take_device(lane, -1);
  }
  ++lane.piece;
  enter_piece(index);
}

void SimulationEngine::end_step(std::size_t index) {
  Lane& lane = lanes_[index];
  const LaneStep& step = (*lane.steps)[lane.next];
  timeline(lane).end[step.step] = now_;
  if (lane.stream == 0) {
    hold_host(lane.c, step.issued + options_.issue, step.step);
  }
  ++lane.next;
  lane.state = LaneState::kIdle;
  mark(lane.c);
}

void SimulationEngine::run_kernel(std::size_t index) {
  Lane& lane = lanes_[index];
  const Piece& piece = piece_of(lane);
  const double slow = classes_.classes[lane.c].slow * timeline_.spread;
  lane.state = LaneState::kRunning;
  begin({index},
        checked_ticks(std::round(static_cast<double>(piece.ticks) * slow)),
        kernel_demands(lane, piece));
}

// A lane of each class that meets in the leg to which a lane has come; empty where one is away.
std::vector<std::size_t> SimulationEngine::members_of(std::size_t index) const {
  const Lane& lane = lanes_[index];
  const Piece& piece = piece_of(lane);
  const RankClasses::Class& own = classes_.classes[lane.c];
  const auto is_there = [&](const Lane& other, std::size_t partners) {
    const Piece& theirs = piece_of(other);
    return other.state == LaneState::kWaiting && theirs.partners == partners &&
           theirs.is_transfer() == piece.is_transfer();
  };
  std::vector<std::size_t> members;
  if (piece.is_transfer()) {
    const ClassState& peer = states_[own.peers[piece.partners]];
    for (std::size_t i = peer.first_lane; i < peer.first_lane + peer.num_lanes; ++i) {
      if (lanes_[i].state == LaneState::kWaiting &&
          is_there(lanes_[i], own.end_of_peer[piece.partners]) &&
          piece_of(lanes_[i]).kind != piece.kind) {
        return {index, i};
      }
    }
    return {};
  }
  for (const std::size_t c : own.along[piece.partners]) {
    const ClassState& state = states_[c];
    const std::size_t member = state.first_lane + lane.stream;
    if (lane.stream >= state.num_lanes || lanes_[member].state != LaneState::kWaiting ||
        !is_there(lanes_[member], piece.partners)) {
      return {};
    }
    members.push_back(member);
  }
  return members;
}

void SimulationEngine::meet(std::size_t index) {
  const std::vector<std::size_t> members = members_of(index);
  if (!members.empty()) {
    require_equal(index, members);
    talk(members);
  }
}

void SimulationEngine::require_equal(std::size_t index,
                                     const std::vector<std::size_t>& members) const {
  const auto microbatch_of = [this](const Lane& lane) {
    return call_of(*states_[lane.c].program->program, step_of(lane)).microbatch;
  };
  const Piece& own = piece_of(lanes_[index]);
  const std::int32_t microbatch = microbatch_of(lanes_[index]);
  for (const std::size_t member : members) {
    const Piece& piece = piece_of(lanes_[member]);
    TESSERA_CHECK(piece.what == own.what && piece.ticks == own.ticks &&
                      piece.moving == own.moving && microbatch_of(lanes_[member]) == microbatch,
                  "collectives of the ranks do not match: found {}; expected {}",
                  describe(lanes_[member]),
                  describe(lanes_[index]));
  }
}

void SimulationEngine::talk(const std::vector<std::size_t>& members) {
  for (const std::size_t member : members) {
    lanes_[member].state = LaneState::kTalking;
  }
  begin(members, piece_of(lanes_[members.front()]).ticks, {});
}

// What runs for no time ends within settle(), as what it leads to begins then.
void SimulationEngine::begin(std::vector<std::size_t> lanes,
                             Ticks alone,
                             Resources::Demands demands) {
  std::size_t slot = activities_.size();
  if (free_activities_.empty()) {
    activities_.emplace_back();
  } else {
    slot = free_activities_.back();
    free_activities_.pop_back();
  }
  Activity& activity = activities_[slot];
  activity.lanes = std::move(lanes);
  activity.moves = false;
  activity.began = now_;
  run_for(slot, alone, std::move(demands));
}

void SimulationEngine::run_for(std::size_t slot, Ticks alone, Resources::Demands demands) {
  Activity& activity = activities_[slot];
  activity.left = static_cast<double>(alone);
  activity.updated = now_;
  activity.rate = Resources::kFull;
  activity.shares = options_.contention && !demands.empty() && alone > 0;
  if (activity.shares) {
    activity.rate = 0;  // until the rates are found
    resources_.begin(slot, std::move(demands));
  } else if (alone == 0) {
    complete(slot);
  } else {
    schedule(slot);
  }
}

void SimulationEngine::schedule(std::size_t slot) {
  Activity& activity = activities_[slot];
  const double factor = static_cast<double>(Resources::kFull) / static_cast<double>(activity.rate);
  const Ticks left = checked_ticks(std::ceil(std::max(0.0, activity.left * factor)));
  TESSERA_REQUIRE(now_ <= kMostTicks,
                  ErrorCode::kInvalidConfig,
                  "the step takes longer than {:.4g} s, which cannot be simulated",
                  to_seconds(kMostTicks));
  events_.push(
      {.time = now_ + left, .of = static_cast<std::uint32_t>(slot), .version = ++activity.version});
}

void SimulationEngine::refresh_rates() {
  for (const std::size_t slot : resources_.refresh()) {
    Activity& activity = activities_[slot];
    const std::int64_t rate = resources_.rate(slot);
    if (rate == activity.rate) {
      continue;
    }
    activity.left -= static_cast<double>(now_ - activity.updated) *
                     static_cast<double>(activity.rate) / static_cast<double>(Resources::kFull);
    activity.updated = now_;
    activity.rate = rate;
    schedule(slot);
  }
}

void SimulationEngine::complete(std::size_t slot) {
  Activity& activity = activities_[slot];
  ++activity.version;
  if (std::exchange(activity.shares, false)) {
    resources_.end(slot);
  }
  const Piece& piece = piece_of(lanes_[activity.lanes.front()]);
  if (piece.is_leg() && !std::exchange(activity.moves, true)) {
    run_for(slot, piece.moving, leg_demands(activity.lanes));
    return;
  }
  finish(slot);
}

void SimulationEngine::finish(std::size_t slot) {
  const std::vector<std::size_t> lanes = std::move(activities_[slot].lanes);
  const Ticks began = activities_[slot].began;
  free_activities_.push_back(slot);
  for (const std::size_t index : lanes) {
    const Lane& lane = lanes_[index];
    const Piece& piece = piece_of(lane);
    if (piece.is_leg()) {
      const Ticks moved = began + piece.ticks + piece.moving;
      record(lane, SpanKind::kAway, lane.since, began);
      record(lane, SpanKind::kLatency, began, began + piece.ticks);
      record(lane, SpanKind::kMoving, began + piece.ticks, moved);
      record(lane, SpanKind::kShared, moved, now_);
    } else {
      record(lane, SpanKind::kKernel, began, now_);
    }
  }
  for (const std::size_t index : lanes) {
    leave_piece(index);
  }
}

void SimulationEngine::record(const Lane& lane, SpanKind kind, Ticks begin, Ticks end) {
  if (begin < end) {
    timeline_.classes[lane.c].streams[lane.stream].push_back({.begin = begin,
                                                              .end = end,
                                                              .step = (*lane.steps)[lane.next].step,
                                                              .piece = lane.piece,
                                                              .kind = kind});
  }
}

// A library's collective runs on the device, also while it waits.
void SimulationEngine::take_device(const Lane& lane, std::int64_t sign) {
  if (!options_.contention || !piece_of(lane).native) {
    return;
  }
  std::int64_t& count = states_[lane.c].num_native;
  const bool had_one = count > 0;
  count += sign;
  if (had_one != (count > 0)) {
    resources_.change_capacity(class_resources_.device(lane.c), -sign * native_share_);
  }
}

Resources::Demands SimulationEngine::kernel_demands(const Lane& lane, const Piece& piece) const {
  Resources::Demands demands;
  if (piece.disk > 0) {
    const ClassResources::Disk& disk = class_resources_.disk(lane.c);
    add_demand(demands, disk.id, piece.disk * disk.num_ranks);
    return demands;
  }
  add_demand(demands, class_resources_.device(lane.c), piece.compute);
  add_demand(demands, class_resources_.memory(lane.c), piece.memory);
  if (const ClassResources::Host* host = class_resources_.host(lane.c)) {
    const std::int64_t most = ranks_.cluster.host.cores;
    const std::int64_t threads = lane.stream == 0 ? std::min(options_.threads, most) : 1;
    add_demand(demands, host->cores, threads * host->num_ranks * Piece::kWhole);
    add_demand(demands, host->memory, piece.memory * host->num_ranks);
  }
  return demands;
}

Resources::Demands SimulationEngine::leg_demands(const std::vector<std::size_t>& lanes) const {
  Resources::Demands demands;
  for (const std::size_t index : lanes) {
    const Lane& lane = lanes_[index];
    const Piece& piece = piece_of(lane);
    const ClassResources::Links& links = class_resources_.links(lane.c, piece.level);
    if (piece.kind != PieceKind::kReceive) {
      add_demand(demands, links.out, links.demand);
    }
    if (piece.kind != PieceKind::kSend) {
      add_demand(demands, links.in, links.demand);
    }
  }
  return demands;
}

std::string SimulationEngine::describe(const Lane& lane) const {
  const TimedProgram& program = *states_[lane.c].program;
  return format("rank {} on stream {} at {}",
                classes_.classes[lane.c].first_rank,
                program.program->streams[lane.stream],
                place_text(*program.program, step_of(lane)));
}

void SimulationEngine::report_stuck() const {
  std::string text;
  for (const Lane& lane : lanes_) {
    if (lane.state != LaneState::kEnded) {
      text += format("{}{}", text.empty() ? "" : "; ", describe(lane));
    }
  }
  fail(ErrorCode::kInternal, "ranks wait for each other for ever: {}", text);
}

double standard_maximum(std::int64_t n) {
  const auto count = static_cast<double>(n);
  const double below = n > 1 ? (count - kBlomShift) / (count + kBlomStretch) : 0.5;
  double low = 0.0;
  double high = 1.0;
  const auto share = [](double x) { return 1.0 - std::erfc(x / std::sqrt(2.0)) / 2.0; };
  while (share(high) < below) {
    high *= 2.0;
  }
  for (int i = 0; i < std::numeric_limits<double>::digits; ++i) {
    const double middle = (low + high) / 2.0;
    (share(middle) < below ? low : high) = middle;
  }
  return n > 1 ? high : 0.0;
}

StepTimeline simulate(const RankPrograms& ranks, const SimulationOptions& options) {
  return SimulationEngine(ranks, options).run();
}

}  // namespace tessera
