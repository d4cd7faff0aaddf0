#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// What activities use at a time, and how fast each is then: max-min fair. Rates are those of whole
// numbers, so that they do not depend on the order in which activities came.
class Resources {
 public:
  using Id = std::uint32_t;

  // Of a rate; an activity that nothing slows has all of it.
  static constexpr std::int64_t kFull = std::int64_t{1} << 30;

  struct Demand {
    Id resource = 0;
    std::int64_t amount = 0;  // at full rate

    friend bool operator==(const Demand&, const Demand&) = default;
  };

  using Demands = std::vector<Demand>;

  Id add(std::int64_t capacity);

  // Adds to the capacity of a resource, which stays above 0.
  void change_capacity(Id resource, std::int64_t change);

  // Activities have numbers that the caller reuses. Their rates are those of the next refresh().
  void begin(std::size_t activity, Demands demands);
  void end(std::size_t activity);

  // The activities whose rates may have changed since the last time.
  std::span<const std::size_t> refresh();

  std::int64_t rate(std::size_t activity) const { return activities_[activity].rate; }

 private:
  struct Resource {
    std::int64_t capacity = 0;
    std::int64_t demanded = 0;
    std::vector<std::size_t> users = {};
    bool dirty = false;
    bool in_component = false;
    // While rates are found.
    std::int64_t left = 0;       // of the capacity, in parts of 1 / kFull
    std::int64_t unsettled = 0;  // demanded by activities without a rate yet
  };

  struct Activity {
    Demands demands = {};
    std::int64_t rate = kFull;
    bool in_component = false;
    bool settled = false;
  };

  void mark(Id resource);
  void include(Id resource);
  void include(std::size_t activity);
  void find_component();
  static std::int64_t rate_of(const Resource& resource);
  bool settle_scarcest();
  void find_rates();
  void settle(std::size_t activity, std::int64_t rate);

  std::vector<Resource> resources_;
  std::vector<Activity> activities_;
  std::vector<Id> dirty_;
  std::vector<Id> component_;
  std::vector<std::size_t> members_;  // activities of the component
  std::vector<Id> scarcest_;
};

}  // namespace tessera
