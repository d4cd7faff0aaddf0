#include "tessera/planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <queue>
#include <thread>

#include "tessera/base/elapsed.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

// Looked at together, whatever the number of threads.
constexpr std::size_t kBatch = 4;
// Neighbours, whose first bounds have much in common, are one thread's.
constexpr std::size_t kStride = 128;

// Calls body(i) for each i below `count`, on several threads. The first exception, by i, leaves.
void for_each(std::size_t count, int threads, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> problems(count);
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        problems[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads && std::cmp_less(i, count); ++i) {
      if (!start_thread(others, work)) {
        break;
      }
    }
    work();
  }
  for (const std::exception_ptr& problem : problems) {
    if (problem) {
      std::rethrow_exception(problem);
    }
  }
}

class Search {
 public:
  Search(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), start_(std::chrono::steady_clock::now()) {
    result_.outcomes.resize(problem.size);
    result_.bounds.resize(problem.size);
  }

  SearchResult run() {
    find_first_bounds();
    options_.exhaustive ? evaluate_all() : look_closer();
    finish();
    return std::move(result_);
  }

 private:
  // A plan, and how often it was looked at.
  struct Candidate {
    double seconds = 0.0;
    std::size_t plan = 0;
    int next = 1;  // of its bounds

    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.seconds != b.seconds ? a.seconds > b.seconds : a.plan > b.plan;
    }
  };

  bool is_late() const { return !options_.exhaustive && seconds_since(start_) > options_.seconds; }

  void find_first_bounds() {
    const std::size_t strides = (problem_.size + kStride - 1) / kStride;
    for_each(strides, options_.threads, [&](std::size_t stride) {
      const std::size_t end = std::min(problem_.size, (stride + 1) * kStride);
      for (std::size_t i = stride * kStride; i < end; ++i) {
        result_.bounds[i] = problem_.bound(i, 0);
      }
    });
    for (std::size_t i = 0; i < problem_.size; ++i) {
      keep({.seconds = result_.bounds[i].seconds, .plan = i});
    }
  }

  void keep(const Candidate& candidate) {
    const PlanBound& bound = result_.bounds[candidate.plan];
    if (bound.is_refused) {
      ++result_.refused;
    } else if (!bound.fits) {
      ++result_.too_large;
    } else {
      heap_.push(candidate);
    }
  }

  void add(std::size_t plan) {
    const PlanOutcome& outcome = *result_.outcomes[plan];
    if (outcome.is_refused) {
      ++result_.refused;
      return;
    }
    if (!outcome.fits) {
      ++result_.too_large;
      return;
    }
    ++result_.simulated;
    if (!result_.fastest || outcome.seconds < result_.outcomes[*result_.fastest]->seconds) {
      result_.fastest = plan;
    }
  }

  double best() const {
    return result_.fastest ? result_.outcomes[*result_.fastest]->seconds
                           : std::numeric_limits<double>::infinity();
  }

  void look_closer() {
    while (!heap_.empty() && heap_.top().seconds < best()) {
      if (is_late()) {
        result_.ran_out = true;
        return;
      }
      std::vector<Candidate> batch;
      while (batch.size() < kBatch && !heap_.empty() && heap_.top().seconds < best()) {
        batch.push_back(heap_.top());
        heap_.pop();
      }
      for_each(batch.size(), options_.threads, [&](std::size_t i) { look_at(batch[i]); });
      for (const Candidate& each : batch) {
        if (each.next < problem_.num_bounds) {
          // A tighter bound of another kind may say less.
          keep({.seconds = std::max(each.seconds, result_.bounds[each.plan].seconds),
                .plan = each.plan,
                .next = each.next + 1});
        } else {
          add(each.plan);
        }
      }
    }
  }

  void look_at(const Candidate& candidate) {
    if (candidate.next < problem_.num_bounds) {
      result_.bounds[candidate.plan] = problem_.bound(candidate.plan, candidate.next);
    } else {
      result_.outcomes[candidate.plan] = problem_.evaluate(candidate.plan);
    }
  }

  void evaluate_all() {
    std::vector<std::size_t> plans;
    for (; !heap_.empty(); heap_.pop()) {
      plans.push_back(heap_.top().plan);
    }
    for_each(plans.size(), options_.threads, [&](std::size_t i) {
      result_.outcomes[plans[i]] = problem_.evaluate(plans[i]);
    });
    std::ranges::for_each(plans, [&](std::size_t plan) { add(plan); });
  }

  void finish() {
    result_.cut = static_cast<std::int64_t>(heap_.size());
    result_.lower = heap_.empty() ? best() : std::min(best(), heap_.top().seconds);
  }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  std::chrono::steady_clock::time_point start_;
  SearchResult result_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap_;
};

}  // namespace

SearchResult search(const SearchProblem& problem, const SearchOptions& options) {
  return Search(problem, options).run();
}

}  // namespace tessera
