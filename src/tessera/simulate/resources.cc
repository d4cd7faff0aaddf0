#include "tessera/simulate/resources.h"

#include <algorithm>
#include <utility>

namespace tessera {

Resources::Id Resources::add(std::int64_t capacity) {
  resources_.push_back({.capacity = capacity});
  return static_cast<Id>(resources_.size() - 1);
}

void Resources::mark(Id resource) {
  if (!std::exchange(resources_[resource].dirty, true)) {
    dirty_.push_back(resource);
  }
}

void Resources::change_capacity(Id resource, std::int64_t change) {
  resources_[resource].capacity += change;
  mark(resource);
}

void Resources::begin(std::size_t activity, Demands demands) {
  activities_.resize(std::max(activities_.size(), activity + 1));
  for (const Demand& demand : demands) {
    Resource& resource = resources_[demand.resource];
    resource.demanded += demand.amount;
    resource.users.push_back(activity);
    mark(demand.resource);
  }
  activities_[activity] = {.demands = std::move(demands), .rate = kFull};
}

void Resources::end(std::size_t activity) {
  for (const Demand& demand : activities_[activity].demands) {
    Resource& resource = resources_[demand.resource];
    resource.demanded -= demand.amount;
    std::erase(resource.users, activity);
    mark(demand.resource);
  }
  activities_[activity].demands.clear();
}

void Resources::include(Id resource) {
  if (!std::exchange(resources_[resource].in_component, true)) {
    component_.push_back(resource);
  }
}

void Resources::include(std::size_t activity) {
  if (!std::exchange(activities_[activity].in_component, true)) {
    members_.push_back(activity);
    for (const Demand& demand : activities_[activity].demands) {
      include(demand.resource);
    }
  }
}

// The users of what has changed, and of all that one of these shares with others and that cannot
// give everybody all.
void Resources::find_component() {
  component_.clear();
  members_.clear();
  for (const Id id : dirty_) {
    include(id);
  }
  for (std::size_t i = 0; i < component_.size(); ++i) {
    const Resource& resource = resources_[component_[i]];
    if (resource.dirty || resource.demanded > resource.capacity) {
      for (const std::size_t user : resource.users) {
        include(user);
      }
    }
  }
  for (const Id id : dirty_) {
    resources_[id].dirty = false;
  }
  dirty_.clear();
}

void Resources::settle(std::size_t activity, std::int64_t rate) {
  activities_[activity].settled = true;
  activities_[activity].rate = rate;
  for (const Demand& demand : activities_[activity].demands) {
    resources_[demand.resource].left -= demand.amount * rate;
    resources_[demand.resource].unsettled -= demand.amount;
  }
}

// The rate at which a resource is used up, where it is what its users lack.
std::int64_t Resources::rate_of(const Resource& resource) {
  return resource.demanded > resource.capacity && resource.unsettled > 0
             ? std::max<std::int64_t>(1, resource.left / resource.unsettled)
             : kFull;
}

bool Resources::settle_scarcest() {
  std::int64_t least = kFull;
  for (const Id id : component_) {
    least = std::min(least, rate_of(resources_[id]));
  }
  if (least == kFull) {
    return false;
  }
  scarcest_.clear();
  for (const Id id : component_) {
    if (rate_of(resources_[id]) == least) {
      scarcest_.push_back(id);
    }
  }
  for (const Id id : scarcest_) {
    for (const std::size_t user : resources_[id].users) {
      if (!activities_[user].settled) {
        settle(user, least);
      }
    }
  }
  return true;
}

// All rates grow together until a resource is used up, which settles its users, and so on.
void Resources::find_rates() {
  for (const Id id : component_) {
    Resource& resource = resources_[id];
    resource.left = resource.capacity * kFull;
    resource.unsettled = resource.demanded;
  }
  for (const std::size_t activity : members_) {
    activities_[activity].settled = false;
  }
  while (settle_scarcest()) {
  }
  for (const std::size_t activity : members_) {
    if (!activities_[activity].settled) {
      settle(activity, kFull);
    }
  }
}

std::span<const std::size_t> Resources::refresh() {
  if (dirty_.empty()) {
    return {};
  }
  find_component();
  find_rates();
  for (const Id id : component_) {
    resources_[id].in_component = false;
  }
  for (const std::size_t activity : members_) {
    activities_[activity].in_component = false;
  }
  return members_;
}

}  // namespace tessera
