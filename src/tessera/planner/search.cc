#include "tessera/planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <map>
#include <queue>
#include <span>
#include <thread>

#include "tessera/base/elapsed.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

// Looked at together, whatever the number of threads: bounds that are found, plans evaluated.
constexpr std::size_t kBounds = 16;
constexpr std::size_t kEvaluations = 2;
// Evaluated though others may be faster: a plan that seems to take so many times the lowest bound
// at most.
constexpr double kHope = 1.25;
// In the last part of the time, and after so many turns without an evaluation, the plan that seems
// fastest is evaluated all the same: what is known to be fast leaves others out.
constexpr double kHaste = 0.6;
constexpr int kPatience = 8;

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
      : problem_(problem),
        options_(options),
        start_(std::chrono::steady_clock::now()),
        plain_(problem.plain) {
    result_.outcomes.resize(problem.size);
    result_.bounds.resize(problem.size);
    heaps_.resize(static_cast<std::size_t>(problem.num_bounds));
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

  using Heap = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  bool is_late() const { return !options_.exhaustive && seconds_since(start_) > options_.seconds; }

  void find_first_bounds() {
    const std::size_t strides = (problem_.size + kStride - 1) / kStride;
    for_each(strides, options_.threads, [&](std::size_t stride) {
      const std::size_t end = std::min(problem_.size, (stride + 1) * kStride);
      for (std::size_t i = stride * kStride; i < end; ++i) {
        result_.bounds[i] = problem_.bound(i, 0);
      }
    });
    if (problem_.own && !options_.exhaustive) {
      evaluate(*problem_.own);
    }
    for (std::size_t i = 0; i < problem_.size; ++i) {
      if (!result_.outcomes[i]) {
        keep({.seconds = result_.bounds[i].seconds, .plan = i});
      }
    }
  }

  // With its tightest bound: others are compared with it.
  void evaluate(std::size_t plan) {
    result_.bounds[plan] = problem_.bound(plan, problem_.num_bounds - 1);
    if (!result_.bounds[plan].is_refused && result_.bounds[plan].fits) {
      result_.outcomes[plan] = problem_.evaluate(plan);
      learn_memory(plan);
      add(plan);
    }
  }

  void keep(const Candidate& candidate) {
    const PlanBound& bound = result_.bounds[candidate.plan];
    if (bound.is_refused) {
      ++result_.refused;
    } else if (!bound.fits) {
      ++result_.too_large;
    } else {
      heap_of(candidate).push(candidate);
    }
  }

  Heap& heap_of(const Candidate& candidate) {
    return !is_ready(candidate)     ? heaps_[static_cast<std::size_t>(candidate.next)]
           : is_doubtful(candidate) ? doubtful_
                                    : ready_[problem_.kind(candidate.plan)];
  }

  // Whether it is likely not to fit, by what others took of its kind.
  bool is_doubtful(const Candidate& candidate) const {
    const auto most = most_memory_.find(problem_.memory_kind(candidate.plan));
    return most != most_memory_.end() && result_.bounds[candidate.plan].memory > most->second;
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

  bool is_ready(const Candidate& candidate) const { return candidate.next == problem_.num_bounds; }

  // The heap whose top may be fastest, one of doubtful plans where there is no other; null where
  // nothing may be faster than the fastest.
  Heap* lowest() {
    Heap* found = nullptr;
    const auto look = [&](Heap& heap) {
      drop_evaluated(heap);
      if (!heap.empty() && heap.top().seconds < best() &&
          (found == nullptr || found->top() > heap.top())) {
        found = &heap;
      }
    };
    std::ranges::for_each(heaps_, look);
    for (auto& [kind, heap] : ready_) {
      set_doubtful_apart(heap);
      look(heap);
    }
    if (found == nullptr) {
      look(doubtful_);
    }
    return found;
  }

  void drop_evaluated(Heap& heap) const {
    while (!heap.empty() && result_.outcomes[heap.top().plan]) {
      heap.pop();
    }
  }

  void set_doubtful_apart(Heap& ready) {
    drop_evaluated(ready);
    while (!ready.empty() && is_doubtful(ready.top())) {
      doubtful_.push(pop(ready));
      drop_evaluated(ready);
    }
  }

  // That of the plan that seems fastest, of those with all bounds, by what others of its kind took;
  // null where there is none.
  Heap* nearest() {
    Heap* found = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (auto& [kind, heap] : ready_) {
      set_doubtful_apart(heap);
      if (!heap.empty() && heap.top().seconds < best() && expected(heap.top()) < least) {
        least = expected(heap.top());
        found = &heap;
      }
    }
    return found;
  }

  // The seconds that a plan is likely to take.
  double expected(const Candidate& candidate) const {
    const auto ratio = ratios_.find(problem_.kind(candidate.plan));
    return candidate.seconds * (ratio == ratios_.end() ? 1.0 : ratio->second);
  }

  static Candidate pop(Heap& heap) {
    const Candidate top = heap.top();
    heap.pop();
    return top;
  }

  // Whether the plan that seems fastest is worth an evaluation, though others may be faster.
  bool is_worth(const Candidate& near, const Candidate& low) const {
    const bool is_hasty = seconds_since(start_) > kHaste * options_.seconds;
    return expected(near) < kHope * low.seconds || (is_hasty && turns_ >= kPatience);
  }

  std::vector<Candidate> next_batch() {
    std::vector<Candidate> batch;
    std::size_t evaluations = 0;
    Heap* const near = nearest();
    if (near != nullptr && is_worth(near->top(), lowest()->top())) {
      batch.push_back(pop(*near));
      ++evaluations;
    }
    for (Heap* heap = lowest(); heap != nullptr && batch.size() < kBounds; heap = lowest()) {
      if (is_ready(heap->top()) && ++evaluations > kEvaluations) {
        break;
      }
      batch.push_back(pop(*heap));
    }
    turns_ = evaluations > 0 ? 0 : turns_ + 1;
    return batch;
  }

  // Two of the plain plans at most; those are left whose turn has not come.
  void evaluate_plain() {
    const auto bound = [&](std::size_t plan) { return result_.bounds[plan].seconds; };
    std::erase_if(plain_, [&](std::size_t plan) {
      return result_.outcomes[plan] || result_.bounds[plan].is_refused ||
             !result_.bounds[plan].fits;
    });
    std::ranges::stable_sort(plain_, {}, bound);
    const std::size_t count = std::min(plain_.size(), kEvaluations);
    for_each(count, options_.threads, [&](std::size_t i) {
      result_.outcomes[plain_[i]] = problem_.evaluate(plain_[i]);
    });
    for (const std::size_t plan : std::span(plain_).first(count)) {
      add(plan);
    }
  }

  void look_closer() {
    while (lowest() != nullptr) {
      const bool was_late = is_late();
      if (!result_.fastest && seconds_since(start_) > options_.seconds / 2) {
        evaluate_plain();
      }
      if (was_late) {
        result_.ran_out = true;
        return;
      }
      const std::vector<Candidate> batch = next_batch();
      for_each(batch.size(), options_.threads, [&](std::size_t i) { look_at(batch[i]); });
      for (const Candidate& each : batch) {
        if (!is_ready(each)) {
          // A tighter bound of another kind may say less.
          keep({.seconds = std::max(each.seconds, result_.bounds[each.plan].seconds),
                .plan = each.plan,
                .next = each.next + 1});
        } else {
          learn(each);
          add(each.plan);
        }
      }
    }
  }

  // Others of the kind may have a bound that is higher by what this one left, or lacked.
  void learn_memory(std::size_t plan) {
    const PlanOutcome& outcome = *result_.outcomes[plan];
    if (outcome.limit > 0 && !outcome.is_refused) {
      const std::int64_t most = result_.bounds[plan].memory + outcome.limit - outcome.memory;
      const auto [entry, is_new] = most_memory_.try_emplace(problem_.memory_kind(plan), most);
      entry->second = std::max(entry->second, most);
    }
  }

  // How many times as long as its bound a plan takes.
  void learn(const Candidate& candidate) {
    const PlanOutcome& outcome = *result_.outcomes[candidate.plan];
    learn_memory(candidate.plan);
    if (!outcome.fits) {
      // The next of the kind may not fit either.
      constexpr double kDoubt = 1.05;
      ratios_[problem_.kind(candidate.plan)] =
          kDoubt * std::max(1.0, ratios_[problem_.kind(candidate.plan)]);
    } else if (!outcome.is_refused && candidate.seconds > 0.0) {
      const double ratio = outcome.seconds / candidate.seconds;
      const auto [entry, is_new] = ratios_.try_emplace(problem_.kind(candidate.plan), ratio);
      entry->second = std::min(entry->second, ratio);
    }
  }

  void look_at(const Candidate& candidate) {
    if (!is_ready(candidate)) {
      result_.bounds[candidate.plan] = problem_.bound(candidate.plan, candidate.next);
    } else {
      result_.outcomes[candidate.plan] = problem_.evaluate(candidate.plan);
    }
  }

  void evaluate_all() {
    std::vector<std::size_t> plans;
    while (Heap* const heap = lowest()) {
      plans.push_back(pop(*heap).plan);
    }
    for_each(plans.size(), options_.threads, [&](std::size_t i) {
      result_.outcomes[plans[i]] = problem_.evaluate(plans[i]);
    });
    std::ranges::for_each(plans, [&](std::size_t plan) { add(plan); });
  }

  void finish() {
    result_.lower = best();
    const auto count = [&](const Heap& heap) {
      for (Heap left = heap; !left.empty(); left.pop()) {
        if (!result_.outcomes[left.top().plan]) {
          result_.lower = std::min(result_.lower, left.top().seconds);
          ++(left.top().seconds < best() ? result_.open : result_.cut);
        }
      }
    };
    std::ranges::for_each(heaps_, count);
    for (const auto& [kind, heap] : ready_) {
      count(heap);
    }
    count(doubtful_);
  }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  std::chrono::steady_clock::time_point start_;
  SearchResult result_;
  std::vector<Heap> heaps_;                          // by how often their plans were looked at
  std::map<std::size_t, Heap> ready_;                // of those with all bounds, by kind
  Heap doubtful_;                                    // of those that are likely not to fit
  std::map<std::size_t, double> ratios_;             // by kind, the least of what learn() saw
  std::map<std::size_t, std::int64_t> most_memory_;  // by memory_kind, of bounds that may fit
  std::vector<std::size_t> plain_;
  int turns_ = 0;  // since a plan was evaluated
};

}  // namespace

SearchResult search(const SearchProblem& problem, const SearchOptions& options) {
  return Search(problem, options).run();
}

}  // namespace tessera
