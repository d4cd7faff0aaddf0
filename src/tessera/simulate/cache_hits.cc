#include "tessera/simulate/cache_hits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "tessera/cost/constants.h"

namespace tessera {
namespace {

class Touches {
 public:
  explicit Touches(double cache_bytes) : cache_bytes_(cache_bytes) {}

  // The share of an instruction's bytes that is there; then it is touched.
  double touch(const Instruction& instruction) {
    double all = 0.0;
    double there = 0.0;
    const auto add = [&](const TensorRef& tensor) {
      const auto bytes = static_cast<double>(tensor.type.num_bytes());
      const auto found = last_.find({tensor.buffer, tensor.offset});
      all += bytes;
      there +=
          found == last_.end() ? 0.0 : bytes * cached_share(touched_ - found->second, cache_bytes_);
    };
    std::ranges::for_each(instruction.operands, add);
    std::ranges::for_each(instruction.results, add);
    touched_ += all;
    const auto mark = [&](const TensorRef& tensor) {
      last_[{tensor.buffer, tensor.offset}] = touched_ - all;
    };
    std::ranges::for_each(instruction.operands, mark);
    std::ranges::for_each(instruction.results, mark);
    return all > 0.0 ? there / all : 0.0;
  }

 private:
  double cache_bytes_;
  double touched_ = 0.0;
  std::map<std::pair<BufferId, std::int64_t>, double> last_;  // touched_ before it was
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
  Touches touches(cache_bytes);
  // What a step begins with is what the one before it left.
  for (const bool counts : {false, true}) {
    for (const IssueStep& step : order.steps) {
      if (step.works && step.stream == 0) {
        const double share = touches.touch(instruction_of(program, step));
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
