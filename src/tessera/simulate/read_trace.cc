#include "tessera/simulate/read_trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json.h"
#include "tessera/simulate/chrome_form.h"

namespace tessera {
namespace {

using Event = nlohmann::json;

constexpr std::array kTraceKinds = {TraceKind::kProduct,
                                    TraceKind::kAttention,
                                    TraceKind::kStream,
                                    TraceKind::kCollective,
                                    TraceKind::kSend,
                                    TraceKind::kReceive,
                                    TraceKind::kNothing};

constexpr std::array kSpanKinds = {
    SpanKind::kKernel, SpanKind::kAway, SpanKind::kLatency, SpanKind::kMoving, SpanKind::kShared};

// Within a program.
struct PlaceKey {
  std::uint32_t call = 0;
  std::uint32_t instruction = 0;

  friend auto operator<=>(const PlaceKey&, const PlaceKey&) = default;
};

struct NumberedPlace {
  TracePlace place;
  StepIndex number = 0;  // in the order in which the process's events come
};

struct HalfArrow {
  std::optional<TraceEnd> from;
  std::optional<TraceEnd> to;
};

// Reads the events, a line each.
class TraceReader {
 public:
  TraceReader(std::string_view text, std::string_view name) : text_(text), file_(name) {}

  StepTrace read() {
    const std::string_view first = next_line();
    if (first != kTraceHead) {
      refuse(format("\"{}\"", first.substr(0, kShown)),
             format("{}, as a trace of tessera begins", kTraceHead));
    }
    for (std::string_view line = next_line(); line != kTraceTail; line = next_line()) {
      if (is_at_end_ && line.empty()) {
        refuse("the end of the file", "more events: the file was cut");
      }
      read_event(line);
    }
    if (at_ != text_.size()) {
      refuse("more behind its end", "nothing");
    }
    finish_process();
    finish_arrows();
    number_names();
    for (const TraceProcess& process : trace_.processes) {
      for (const TraceThread& thread : process.threads) {
        for (const TraceSpan& span : thread.spans) {
          trace_.step = std::max(trace_.step, span.end);
        }
      }
    }
    return std::move(trace_);
  }

 private:
  static constexpr std::size_t kShown = 40;                        // characters of what was found
  static constexpr std::size_t kMostRanks = std::size_t{1} << 30;  // their squares have room

  std::string_view next_line() {
    ++line_;
    line_begin_ = at_;
    is_at_end_ = at_ >= text_.size();
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    return line;
  }

  [[noreturn]] void refuse(std::string_view found, std::string_view expected) const {
    fail(ErrorCode::kInvalidData,
         "{}: line {}: found {}, expected {}",
         file_,
         line_,
         found,
         expected);
  }

  const Event& member(const Event& object, const char* key, const char* expected) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found == object.end()) {
      refuse(format("no \"{}\"", key), format("{} there", expected));
    }
    return *found;
  }

  std::string shown(const char* key, const Event& value) const {
    return format("\"{}\": {}",
                  key,
                  value.dump(-1, ' ', false, Event::error_handler_t::replace).substr(0, kShown));
  }

  const std::string& text(const Event& object, const char* key) const {
    const Event& value = member(object, key, "a text");
    if (!value.is_string()) {
      refuse(shown(key, value), "a text");
    }
    return value.get_ref<const std::string&>();
  }

  // From 0 to below `bound`.
  std::size_t number(const Event& object,
                     const char* key,
                     std::size_t bound = std::numeric_limits<std::int32_t>::max()) const {
    const Event& value = member(object, key, "a number");
    const std::optional<std::int64_t> whole = whole_number(value);
    if (!whole || *whole < 0 || static_cast<std::size_t>(*whole) >= bound) {
      refuse(shown(key, value), format("a whole number from 0 to below {}", bound));
    }
    return static_cast<std::size_t>(*whole);
  }

  double real(const Event& object, const char* key) const {
    const Event& value = member(object, key, "a number");
    if (!value.is_number()) {
      refuse(shown(key, value), "a number");
    }
    return value.get<double>();
  }

  // Of microseconds with six decimals, of which a double of less than 2^33 has all.
  Ticks ticks(const Event& object, const char* key) const {
    constexpr double kMost = 8589934592.0;
    constexpr double kPerMicro = 1e6;
    const double micros = real(object, key);
    if (!(micros >= 0.0 && micros < kMost)) {
      refuse(shown(key, object.at(key)), format("microseconds from 0 to below {:.0f}", kMost));
    }
    const double whole = std::trunc(micros);
    return static_cast<Ticks>(whole) * static_cast<Ticks>(kPerMicro) +
           std::llround((micros - whole) * kPerMicro);
  }

  template <class Kinds>
  auto kind(const Event& object, const char* key, const Kinds& kinds) const {
    const std::string& found = text(object, key);
    const auto of = std::ranges::find_if(kinds, [&](auto each) { return name(each) == found; });
    if (of == kinds.end()) {
      std::string names;
      for (const auto each : kinds) {
        names += format("{}{}", names.empty() ? "" : ", ", name(each));
      }
      refuse(shown(key, object.at(key)), "one of " + names);
    }
    return *of;
  }

  std::uint32_t name_number(const std::string& name) {
    const auto [found, is_new] =
        numbers_.try_emplace(name, static_cast<std::uint32_t>(numbers_.size()));
    return found->second;
  }

  TraceProcess& process_of(const Event& event) {
    const std::size_t process = number(event, "pid", trace_.processes.size());
    if (process + 1 != trace_.processes.size()) {
      refuse(shown("pid", event.at("pid")), "events process by process");
    }
    return trace_.processes[process];
  }

  TraceThread& thread_of(const Event& event) {
    TraceProcess& process = process_of(event);
    return process.threads[number(event, "tid", process.threads.size())];
  }

  Event parse_event(std::string_view line) const {
    try {
      return parse_json(line, {.offset = line_begin_, .unique_keys = false});
    } catch (const Error& error) {
      // The parser knows of this line alone.
      constexpr std::string_view kOnlyLine = "line 1, ";
      std::string message = error.message();
      if (const std::size_t at = message.find(kOnlyLine); at != std::string::npos) {
        message.erase(at, kOnlyLine.size());
      }
      fail(ErrorCode::kInvalidData, "{}: line {}: {}", file_, line_, message);
    }
  }

  void read_event(std::string_view line) {
    if (line.ends_with(',')) {
      line.remove_suffix(1);
    }
    const Event event = parse_event(line);
    const std::string& phase = text(event, "ph");
    if (phase == "M") {
      read_name(event);
    } else if (phase == "X") {
      read_span(event);
    } else if (phase == "C") {
      read_counter(event);
    } else if (phase == "s" || phase == "f") {
      const std::size_t thread = number(event, "tid");
      thread_of(event);
      HalfArrow& arrow = arrows_[number(event, "id")];
      (phase == "s" ? arrow.from : arrow.to) = {
          .process = number(event, "pid"), .thread = thread, .at = ticks(event, "ts")};
    } else {
      refuse(shown("ph", event.at("ph")), "an event of kind M, X, C, s or f");
    }
  }

  void read_name(const Event& event) {
    const std::string& what = text(event, "name");
    const Event& args = member(event, "args", "an object");
    if (what == "process_name") {
      finish_process();
      const std::string& name = text(args, "name");
      if (number(event, "pid") != trace_.processes.size()) {
        refuse(shown("pid", event.at("pid")),
               format("{}: processes are numbered from 0", trace_.processes.size()));
      }
      trace_.processes.push_back(ranks_of(name));
      num_ranks_ += trace_.processes.back().num_ranks;
      if (num_ranks_ > kMostRanks) {
        refuse(format("process \"{}\"", name.substr(0, kShown)),
               format("at most {} ranks in all", kMostRanks));
      }
    } else if (what == "thread_name") {
      TraceProcess& process = process_of(event);
      if (number(event, "tid") != process.threads.size()) {
        refuse(shown("tid", event.at("tid")),
               format("{}: threads are numbered from 0", process.threads.size()));
      }
      process.threads.push_back({.name = text(args, "name"), .spans = {}});
    } else if (what != "process_sort_index" && what != "thread_sort_index") {
      refuse(shown("name", event.at("name")),
             "one of process_name, process_sort_index, thread_name, thread_sort_index");
    }
  }

  // "rank 3" and "rank 3 x2".
  TraceProcess ranks_of(const std::string& name) const {
    TraceProcess process = {.name = name, .threads = {}, .counters = {}};
    std::string_view rest = name;
    const auto take = [&](std::string_view word, std::size_t& count) {
      if (!rest.starts_with(word)) {
        return false;
      }
      rest.remove_prefix(word.size());
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      return error == std::errc() && count <= std::numeric_limits<std::int32_t>::max();
    };
    const bool is_good = take("rank ", process.first_rank) &&
                         (rest.empty() || (take(" x", process.num_ranks) && rest.empty())) &&
                         process.num_ranks > 0;
    if (!is_good) {
      refuse(format("process \"{}\"", name.substr(0, kShown)), "\"rank N\" or \"rank N xCOUNT\"");
    }
    return process;
  }

  void read_span(const Event& event) {
    TraceThread& thread = thread_of(event);
    const Event& args = member(event, "args", "an object");
    const TracePlace place = {
        .call = static_cast<std::uint32_t>(number(args, "call")),
        .instruction = static_cast<std::uint32_t>(number(args, "instruction")),
        .microbatch = static_cast<std::int32_t>(number(args, "microbatch")),
        .segment = name_number(text(args, "segment")),
        .op = name_number(text(event, "name")),
        .action = kind(args, "action", kActions)};
    const auto [own, is_new] = places_.try_emplace(
        {.call = place.call, .instruction = place.instruction},
        NumberedPlace{.place = place, .number = static_cast<StepIndex>(places_.size())});
    if (own->second.place != place) {
      refuse(format("call {}, instruction {} as another instruction than before",
                    place.call,
                    place.instruction),
             "the same each time");
    }
    const Ticks begin = ticks(event, "ts");
    thread.spans.push_back(
        {.begin = begin,
         .end = begin + ticks(event, "dur"),
         .step = own->second.number,
         .kind = kind(event, "cat", kTraceKinds),
         .part = args.contains("part") ? kind(args, "part", kSpanKinds) : SpanKind::kKernel});
  }

  void read_counter(const Event& event) {
    std::vector<TraceCounter>& counters = process_of(event).counters;
    const Event& args = member(event, "args", "an object");
    if (!args.is_object() || args.size() != 1) {
      refuse(shown("args", args), "an object of one unit and its value");
    }
    const std::string& name = text(event, "name");
    const std::string& unit = args.begin().key();
    if (counters.empty() || counters.back().name != name || counters.back().unit != unit) {
      counters.push_back({.name = name, .unit = unit, .points = {}});
    }
    const double value = real(args, unit.c_str());
    if (std::signbit(value)) {
      refuse(shown(unit.c_str(), args.at(unit)), "no negative number");
    }
    counters.back().points.push_back({.at = ticks(event, "ts"), .value = value});
  }

  // The steps of an order come call by call: the places of a process in this order are those of its
  // program.
  void finish_process() {
    if (trace_.processes.empty()) {
      return;
    }
    std::vector<TracePlace> places;
    std::vector<StepIndex> steps(places_.size());
    for (const auto& [key, own] : places_) {
      steps[own.number] = static_cast<StepIndex>(places.size());
      places.push_back(own.place);
    }
    places_.clear();
    TraceProcess& process = trace_.processes.back();
    for (TraceThread& thread : process.threads) {
      for (TraceSpan& span : thread.spans) {
        span.step = steps[span.step];
      }
    }
    const auto known = std::ranges::find(trace_.places, places);
    process.program = static_cast<std::size_t>(known - trace_.places.begin());
    if (known == trace_.places.end()) {
      trace_.places.push_back(std::move(places));
    }
  }

  void finish_arrows() {
    for (const auto& [id, arrow] : arrows_) {
      if (id != trace_.arrows.size() || !arrow.from || !arrow.to) {
        refuse(format("no whole arrow {}", std::min(id, trace_.arrows.size())),
               "both ends of each, numbered from 0");
      }
      trace_.arrows.push_back({.from = *arrow.from, .to = *arrow.to});
    }
  }

  // In the order of the places, as trace_of() does.
  void number_names() {
    std::vector<const std::string*> names(numbers_.size());
    for (const auto& [name, number] : numbers_) {
      names[number] = &name;
    }
    constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    std::vector<std::uint32_t> now(names.size(), kNone);
    const auto renumber = [&](std::uint32_t& number) {
      if (now[number] == kNone) {
        now[number] = static_cast<std::uint32_t>(trace_.names.size());
        trace_.names.push_back(*names[number]);
      }
      number = now[number];
    };
    for (std::vector<TracePlace>& places : trace_.places) {
      for (TracePlace& place : places) {
        renumber(place.segment);
        renumber(place.op);
      }
    }
  }

  std::string_view text_;
  std::string file_;
  std::size_t at_ = 0;  // in the text, of the next line
  std::size_t line_ = 0;
  std::size_t line_begin_ = 0;
  std::size_t num_ranks_ = 0;  // of the processes so far
  bool is_at_end_ = false;
  StepTrace trace_;
  std::map<std::string, std::uint32_t> numbers_;  // of names, as they come
  std::map<PlaceKey, NumberedPlace> places_;      // of the last process
  std::map<std::size_t, HalfArrow> arrows_;       // by id
};

}  // namespace

bool is_trace(std::string_view text) {
  return text.starts_with(kTraceHead);
}

StepTrace parse_trace(std::string_view text, std::string_view name) {
  return TraceReader(text, name).read();
}

StepTrace load_trace(const std::filesystem::path& path) {
  return parse_trace(read_file(path), path.string());
}

void append_trace(StepTrace& trace, const StepTrace& others) {
  std::vector<std::uint32_t> names;
  for (const std::string& name : others.names) {
    const auto known = std::ranges::find(trace.names, name);
    names.push_back(static_cast<std::uint32_t>(known - trace.names.begin()));
    if (known == trace.names.end()) {
      trace.names.push_back(name);
    }
  }
  std::vector<std::size_t> programs;
  for (std::vector<TracePlace> places : others.places) {
    for (TracePlace& place : places) {
      place.segment = names[place.segment];
      place.op = names[place.op];
    }
    const auto known = std::ranges::find(trace.places, places);
    programs.push_back(static_cast<std::size_t>(known - trace.places.begin()));
    if (known == trace.places.end()) {
      trace.places.push_back(std::move(places));
    }
  }
  const std::size_t num_processes = trace.processes.size();
  for (const TraceProcess& process : others.processes) {
    trace.processes.push_back(process);
    trace.processes.back().program = programs[process.program];
  }
  for (TraceArrow arrow : others.arrows) {
    arrow.from.process += num_processes;
    arrow.to.process += num_processes;
    trace.arrows.push_back(arrow);
  }
  trace.step = std::max(trace.step, others.step);
}

}  // namespace tessera
