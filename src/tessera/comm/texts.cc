#include "tessera/comm/texts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

std::vector<std::string> gather_texts(Communicator& group, std::string_view text) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::int64_t size = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes(ranks);
  group.all_gather(std::as_bytes(std::span(&size, 1)),
                   std::as_writable_bytes(std::span(sizes)),
                   sizeof(std::int64_t));
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  std::string padded(text);
  padded.resize(longest);
  std::string all(longest * ranks, '\0');
  group.all_gather(
      std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)), longest);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

}  // namespace tessera
