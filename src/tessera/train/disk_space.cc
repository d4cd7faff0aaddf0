#include "tessera/train/disk_space.h"

#include <algorithm>
#include <system_error>

#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {

std::string disk_shortage(const std::filesystem::path& directory, const DiskNeed& need) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  const auto [checkpoint_bytes, keep, keeps_best, present] = need;
  const double most = keep == 0 ? 2 : static_cast<double>(keep) + (keeps_best ? 3 : 2);
  // Room for what will be there beside the present ones; keeping all asks for two more.
  const double to_come = keep == 0 ? most : std::max(0.0, most - static_cast<double>(present));
  const double bytes = to_come * static_cast<double>(checkpoint_bytes);
  if (error || bytes <= static_cast<double>(space.available)) {
    return "";
  }
  return format(
      "the disk of {} has {} free, and a checkpoint takes {}: {}, so that saves will fail once it "
      "is full; free some of it, or set checkpoint.keep lower",
      directory.string(),
      format_bytes(static_cast<std::int64_t>(space.available)),
      format_bytes(checkpoint_bytes),
      keep == 0 ? "checkpoint.keep = 0 keeps all of them, and two more do not fit"
                : format("checkpoint.keep = {} needs room for {} at a time, of which {} are there",
                         keep,
                         most,
                         present));
}

}  // namespace tessera
