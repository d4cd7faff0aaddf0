#include "tessera/simulate/cache_hits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "tessera/cost/constants.h"

namespace tessera {
namespace {

class Touches {
 public:
  Touches(const Program& program, double cache_bytes)
      : program_(program), cache_bytes_(cache_bytes) {}

  // The share of an instruction's bytes that is there; then it is touched.
  double touch(const Call& call, const Instruction& instruction) {
    double all = 0.0;
    double there = 0.0;
    const auto add = [&](const TensorRef& tensor) {
      const auto bytes = static_cast<double>(tensor.type.num_bytes());
      const auto found = last_.find(place_of(call, tensor));
      all += bytes;
      there +=
          found == last_.end() ? 0.0 : bytes * cached_share(touched_ - found->second, cache_bytes_);
    };
    std::ranges::for_each(instruction.operands, add);
    std::ranges::for_each(instruction.results, add);
    const auto mark = [&](const TensorRef& tensor) { last_[place_of(call, tensor)] = touched_; };
    std::ranges::for_each(instruction.operands, mark);
    std::ranges::for_each(instruction.results, mark);
    touched_ += all;
    return all > 0.0 ? there / all : 0.0;
  }

 private:
  // A slot of a buffer, or the arena (no buffer), and where in it.
  using Where = std::tuple<BufferId, std::int32_t, std::int64_t>;

  Where place_of(const Call& call, const TensorRef& tensor) const {
    const Buffer& buffer = program_[tensor.buffer];
    const std::int32_t slot = Program::slot_of(call, buffer.pool);
    if (buffer.offsets.empty() || buffer.space != Space::kDevice) {
      return {tensor.buffer, slot, tensor.offset};
    }
    return {BufferId(), 0, buffer.offsets[static_cast<std::size_t>(slot)] + tensor.offset};
  }

  const Program& program_;
  double cache_bytes_;
  double touched_ = 0.0;
  std::map<Where, double> last_;  // touched_ when it began to be
};

}  // namespace

double cached_share(double bytes, double cache_bytes) {
  return cache_bytes > 0.0
             ? std::clamp(
                   (kCachedBelow - bytes / cache_bytes) / (kCachedBelow - kCachedUpTo), 0.0, 1.0)
             : 0.0;
}

std::vector<double> cached_shares(const Program& program,
                                  const IssueOrder& order,
                                  double cache_bytes) {
  std::size_t num_places = 0;
  for (const Segment& segment : program.segments) {
    num_places += segment.instructions.size();
  }
  std::vector<double> shares(num_places, 0.0);
  std::vector<double> runs(num_places, 0.0);
  Touches touches(program, cache_bytes);
  // What a step begins with is what the one before it left.
  for (const bool counts : {false, true}) {
    for (const IssueStep& step : order.steps) {
      if (step.works && step.stream == 0) {
        const double share = touches.touch(call_of(program, step), instruction_of(program, step));
        if (counts) {
          shares[step.place] += share;
          runs[step.place] += 1.0;
        }
      }
    }
  }
  for (std::size_t place = 0; place < num_places; ++place) {
    shares[place] /= std::max(runs[place], 1.0);
  }
  return shares;
}

}  // namespace tessera
