#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tessera {

// Values that are made once each, by whichever thread asks first; others wait for it.
template <class Value>
class ByKey {
 public:
  // Where `make` throws, the next who asks tries again.
  template <class Make>
  std::shared_ptr<const Value> get(const std::string& key, const Make& make) {
    const std::shared_ptr<Entry> entry = find(key);
    const std::scoped_lock lock(entry->mutex);
    if (!entry->value) {
      entry->value = std::make_shared<const Value>(make());
    }
    return entry->value;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Value> value;
  };

  std::shared_ptr<Entry> find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Entry>& entry = entries_[key];
    if (!entry) {
      entry = std::make_shared<Entry>();
    }
    return entry;
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace tessera
