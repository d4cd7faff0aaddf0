#pragma once

#include <cstddef>

namespace tessera {

// Zeroed memory of the process, whose pages it takes at their first touch.
class Mapping {
 public:
  // `what` is named in the error. Errors: kOutOfMemory.
  Mapping(std::size_t bytes, const char* what);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Null for no bytes.
  std::byte* data() const { return data_; }

  // Asks for huge pages, where the system offers them.
  void prefer_huge_pages() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace tessera
