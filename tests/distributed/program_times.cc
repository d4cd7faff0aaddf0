#include "tests/distributed/program_times.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/channel.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/issue_order.h"

namespace tessera {
namespace {

// A step of another stream than the first.
struct Item {
  double issued = 0.0;
  std::span<const StepIndex> after;
  std::optional<std::pair<ChannelKey, bool>> channel;  // and whether it sends
  std::size_t transfer = 0;                            // of its end of the channel
  std::optional<double> end = std::nullopt;
};

std::optional<std::pair<ChannelKey, bool>> channel_of(const Op& op) {
  if (const auto* send = op.get_if<SendAttrs>()) {
    return {{{.from = send->from, .to = send->to, .number = send->number}, true}};
  }
  if (const auto* receive = op.get_if<ReceiveAttrs>()) {
    return {{{.from = receive->from, .to = receive->to, .number = receive->number}, false}};
  }
  return std::nullopt;
}

// When the ends of a channel have begun their transfers.
struct Begun {
  std::vector<double> sends;
  std::vector<double> receives;
};

using Channels = std::map<ChannelKey, Begun>;

class RankTimes {
 public:
  RankTimes(const Program& program, const InstructionSeconds& seconds, double hop)
      : program_(program),
        order_(issue_order(program)),
        seconds_(seconds),
        hop_(hop),
        streams_(program.streams.size()) {}

  // Whether it got on.
  bool go_on(Channels& channels) {
    bool went_on = false;
    while (next_ < order_.steps.size() && start(order_.steps[next_])) {
      ++next_;
      went_on = true;
    }
    for (Stream& stream : streams_) {
      went_on = go_on_with(stream, channels) || went_on;
    }
    return went_on;
  }

  bool is_done() const {
    return next_ == order_.steps.size() && std::ranges::all_of(streams_, [](const Stream& stream) {
             return stream.done == stream.items.size();
           });
  }

  double end() const {
    double end = now_;
    for (const Stream& stream : streams_) {
      end = std::max(end, stream.now);
    }
    return end;
  }

 private:
  struct Stream {
    std::vector<Item> items;
    std::size_t done = 0;  // of these
    bool is_begun = false;
    double now = 0.0;
  };

  // When all of these have ended, if they have.
  std::optional<double> end_of(std::span<const StepIndex> awaited) const {
    double end = 0.0;
    for (const StepIndex index : awaited) {
      const IssueStep& step = order_.steps[index];
      const std::optional<double>& of_item = streams_[step.stream].items[step.item].end;
      if (!of_item) {
        return std::nullopt;
      }
      end = std::max(end, *of_item);
    }
    return end;
  }

  // Whether the first stream gets past it.
  bool start(const IssueStep& step) {
    const Instruction& instruction = instruction_of(program_, step);
    if (step.stream == 0) {
      const std::optional<double> end = end_of(order_.waits_of(step));
      if (!end) {
        return false;
      }
      now_ = std::max(now_, *end) + (step.works ? seconds_(instruction) : 0.0);
      return true;
    }
    Item item = {
        .issued = now_, .after = order_.waits_of(step), .channel = channel_of(*instruction.op)};
    if (item.channel) {
      item.transfer = transfers_[*item.channel]++;
    }
    streams_[step.stream].items.push_back(std::move(item));
    return true;
  }

  bool go_on_with(Stream& stream, Channels& channels) const {
    bool went_on = false;
    while (stream.done < stream.items.size()) {
      Item& item = stream.items[stream.done];
      if (!stream.is_begun) {
        const std::optional<double> end = end_of(item.after);
        if (!end) {
          return went_on;
        }
        stream.now = std::max({stream.now, item.issued, *end});
        stream.is_begun = true;
        if (item.channel) {
          Begun& begun = channels[item.channel->first];
          (item.channel->second ? begun.sends : begun.receives).push_back(stream.now);
        }
        went_on = true;
      }
      if (item.channel) {
        const Begun& begun = channels.at(item.channel->first);
        if (begun.sends.size() <= item.transfer || begun.receives.size() <= item.transfer) {
          return went_on;
        }
        stream.now = std::max(begun.sends[item.transfer], begun.receives[item.transfer]) + hop_;
      }
      item.end = stream.now;
      stream.is_begun = false;
      ++stream.done;
      went_on = true;
    }
    return went_on;
  }

  const Program& program_;
  IssueOrder order_;
  const InstructionSeconds& seconds_;
  double hop_;
  std::size_t next_ = 0;
  double now_ = 0.0;
  std::vector<Stream> streams_;
  std::map<std::pair<ChannelKey, bool>, std::size_t> transfers_;
};

}  // namespace

double step_seconds(std::span<const Program> programs,
                    const InstructionSeconds& seconds,
                    double hop) {
  std::vector<RankTimes> ranks;
  for (const Program& program : programs) {
    ranks.emplace_back(program, seconds, hop);
  }
  Channels channels;
  for (bool went_on = true; went_on;) {
    went_on = false;
    for (RankTimes& rank : ranks) {
      went_on = rank.go_on(channels) || went_on;
    }
  }
  double end = 0.0;
  for (const RankTimes& rank : ranks) {
    TESSERA_CHECK(
        rank.is_done(), "rank {} of {} waits for ever", &rank - ranks.data(), ranks.size());
    end = std::max(end, rank.end());
  }
  return end;
}

}  // namespace tessera
