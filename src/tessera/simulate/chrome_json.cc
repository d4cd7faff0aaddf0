#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/simulate/chrome_form.h"
#include "tessera/simulate/trace.h"

namespace tessera {
namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// An end of an arrow, as one of its thread.
struct FlowEnd {
  Ticks at = 0;
  std::size_t arrow = 0;
  bool is_begin = false;
};

// Writes the events, a line each.
class ChromeWriter {
 public:
  explicit ChromeWriter(const StepTrace& trace) : trace_(trace) {
    for (const std::string& name : trace.names) {
      names_.push_back(json_text(name));
    }
    for (const TraceProcess& process : trace.processes) {
      ends_.emplace_back(process.threads.size());
    }
    for (std::size_t arrow = 0; arrow < trace.arrows.size(); ++arrow) {
      const auto& [from, to] = trace.arrows[arrow];
      ends_[from.process][from.thread].push_back({.at = from.at, .arrow = arrow, .is_begin = true});
      ends_[to.process][to.thread].push_back({.at = to.at, .arrow = arrow, .is_begin = false});
    }
  }

  std::string write() {
    text_ = format("{}\n", kTraceHead);
    for (std::size_t process = 0; process < trace_.processes.size(); ++process) {
      write_process(process);
    }
    if (text_.ends_with(",\n")) {
      text_.erase(text_.size() - 2, 1);
    }
    return std::move(text_) + format("{}\n", kTraceTail);
  }

 private:
  // Microseconds, to the picosecond.
  static std::string micros(Ticks ticks) {
    constexpr Ticks kPerMicro = 1'000'000;
    return format("{}.{:06}", ticks / kPerMicro, ticks % kPerMicro);
  }

  // How `what`, which `id` is, is called, and after how many others it is shown.
  void write_names(const std::string& id,
                   std::string_view what,
                   const std::string& name,
                   std::size_t place) {
    constexpr std::string_view kEvent =
        "{{\"ph\":\"M\",{},\"name\":\"{}_{}\",\"args\":{{\"{}\":{}}}}},\n";
    text_ += format(kEvent, id, what, "name", "name", json_text(name));
    text_ += format(kEvent, id, what, "sort_index", "sort_index", place);
  }

  void write_process(std::size_t index) {
    const TraceProcess& process = trace_.processes[index];
    const std::string pid = format("\"pid\":{}", index);
    write_names(pid, "process", process.name, index);
    for (std::size_t thread = 0; thread < process.threads.size(); ++thread) {
      const std::string tid = format("{},\"tid\":{}", pid, thread);
      write_names(tid, "thread", process.threads[thread].name, thread);
    }
    for (std::size_t thread = 0; thread < process.threads.size(); ++thread) {
      write_thread(index, thread);
    }
    for (const TraceCounter& counter : process.counters) {
      const std::string name = json_text(counter.name);
      const std::string unit = json_text(counter.unit);
      for (const TracePoint& point : counter.points) {
        text_ += format("{{\"ph\":\"C\",\"pid\":{},\"ts\":{},\"name\":{},\"args\":{{{}:{}}}}},\n",
                        index,
                        micros(point.at),
                        name,
                        unit,
                        point.value);
      }
    }
  }

  void write_thread(std::size_t process, std::size_t thread) {
    std::vector<FlowEnd>& ends = ends_[process][thread];
    std::ranges::stable_sort(ends, {}, &FlowEnd::at);
    auto next = ends.begin();
    for (const TraceSpan& span : trace_.processes[process].threads[thread].spans) {
      // An end belongs to the span that has begun when it comes.
      for (; next != ends.end() && next->at < span.begin; ++next) {
        write_end(process, thread, *next);
      }
      write_span(process, thread, span);
    }
    for (; next != ends.end(); ++next) {
      write_end(process, thread, *next);
    }
  }

  void write_span(std::size_t process, std::size_t thread, const TraceSpan& span) {
    const TracePlace& place = trace_.place(trace_.processes[process], span);
    text_ += format(
        "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":\"{}\","
        "\"args\":{{\"place\":{},\"action\":\"{}\",\"segment\":{},\"call\":{},\"microbatch\":{},"
        "\"instruction\":{}{}"
        "}}}},\n",
        process,
        thread,
        micros(span.begin),
        micros(span.end - span.begin),
        names_[place.op],
        name(span.kind),
        json_text(place_text(trace_, place)),
        name(place.action),
        names_[place.segment],
        place.call,
        place.microbatch,
        place.instruction,
        span.part == SpanKind::kKernel ? "" : format(",\"part\":\"{}\"", name(span.part)));
  }

  void write_end(std::size_t process, std::size_t thread, const FlowEnd& end) {
    text_ += format(
        "{{\"ph\":\"{}\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{},\"name\":\"meeting\",\"cat\":"
        "\"meeting\"}},\n",
        end.is_begin ? "s" : "f\",\"bp\":\"e",
        end.arrow,
        process,
        thread,
        micros(end.at));
  }

  const StepTrace& trace_;
  std::vector<std::string> names_;                       // of the trace, as texts of JSON
  std::vector<std::vector<std::vector<FlowEnd>>> ends_;  // by process and thread
  std::string text_;
};

}  // namespace

std::string chrome_json(const StepTrace& trace) {
  return ChromeWriter(trace).write();
}

}  // namespace tessera
