#include <string>

#include <oneapi/dnnl/dnnl.h>

#include "tessera/base/format.h"
#include "tessera/cli/build_info.h"

namespace tessera {

std::string describe_build() {
  const BuildInfo info = build_info();
  const dnnl_version_t* dnnl = dnnl_version();
  return format(
      "tessera {}\n"
      "commit    {}\n"
      "compiler  {}\n"
      "build     {}\n"
      "oneDNN    {}.{}.{}",
      info.version,
      info.commit,
      info.compiler,
      info.build_type,
      dnnl->major,
      dnnl->minor,
      dnnl->patch);
}

}  // namespace tessera
