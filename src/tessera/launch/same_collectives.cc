#include "tessera/launch/same_collectives.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/comm/texts.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"

namespace tessera {
namespace {

void verify(const Mesh& mesh,
            std::vector<CollectiveSequence> classes,
            const std::vector<std::size_t>& class_of,
            bool one_queue) {
  verify_ranks(mesh, classes, class_of);
  if (one_queue) {
    std::ranges::transform(classes, classes.begin(), in_one_queue);
    verify_ranks(mesh, classes, class_of);
  }
}

}  // namespace

void require_same_collectives(Communicator& all,
                              const Program& program,
                              const Mesh& mesh,
                              bool one_queue) {
  const CollectiveSequence own = collective_calls(program);
  const std::string own_text = to_string(own);
  const std::string own_class = format("{}\n{}", pipeline_place(mesh, all.rank()), own_text);
  const std::vector<std::string> digests =
      gather_texts(all, digest(std::as_bytes(std::span(own_class))).xxh3_128);

  std::vector<std::string> distinct;
  std::vector<std::size_t> speakers;  // by class, the rank that sends its list
  std::vector<std::size_t> class_of;
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    const auto found = std::ranges::find(distinct, digests[rank]);
    class_of.push_back(static_cast<std::size_t>(found - distinct.begin()));
    if (found == distinct.end()) {
      distinct.push_back(digests[rank]);
      speakers.push_back(rank);
    }
  }
  if (distinct.size() == 1) {
    verify(mesh, {own}, class_of, one_queue);
    return;
  }
  const auto rank = static_cast<std::size_t>(all.rank());
  const bool speaks = speakers[class_of[rank]] == rank;
  const std::vector<std::string> lists = gather_texts(all, speaks ? own_text : "");
  std::vector<CollectiveSequence> classes;
  classes.reserve(speakers.size());
  for (const std::size_t speaker : speakers) {
    classes.push_back(parse_collective_calls(lists[speaker]));
  }
  verify(mesh, std::move(classes), class_of, one_queue);
}

}  // namespace tessera
