#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::cuda {

// Which algorithm of a library was the fastest for a matrix product, from run to run: a text for
// each product on each kind of machine. Several processes may use the same files.
class AlgorithmCache {
 public:
  // Where a product stands in several files, the first of them decides. A file that is not there is
  // empty; one that cannot be read, and lines that are none, are warned of and left out. Without
  // files it knows what it is told. `machine` is what algorithms hold for: a device and the
  // library's version.
  AlgorithmCache(const std::string& machine, std::vector<std::filesystem::path> files);

  // What is known of a product. From then on the first file has it, too: it says all that was used.
  // Without files it is noted().
  std::optional<std::string> use(const std::string& product);

  // From now on, in all files, of which those behind the first keep what they have. Texts have no
  // tabs and no line feeds.
  void add(const std::string& product, const std::string& algorithm);

  // What was found of a product, for other ranks to hear of: use() does not know it before take().
  void note(const std::string& product, const std::string& algorithm);

  // All that is known, and what was noted, as text for take(): of every kind of machine.
  std::string known() const { return text_of(known_); }

  std::string noted() const { return text_of(noted_); }

  // Adds what texts say, in place of what was known; of a product the first that speaks of it
  // decides. Lines that are none are left out.
  void take(std::span<const std::string> texts);

  // Writes what was used or added since, each file at once. What others wrote meanwhile stays,
  // unless they write at the same moment. A file that cannot be written is warned of, once.
  void keep();

 private:
  // By "machine\tproduct".
  using Entries = std::map<std::string, std::string>;

  struct File {
    std::filesystem::path path;
    Entries known;
    Entries changed;       // of these, what the file has not yet
    bool is_lost = false;  // it cannot be written
  };

  static Entries read(const std::filesystem::path& path);
  static void write_changes(const File& file, bool replaces);
  static std::string text_of(const Entries& entries);
  std::string key_of(const std::string& product) const;
  void add_entry(const std::string& key, const std::string& algorithm);

  std::string machine_;
  std::vector<File> files_;
  Entries known_;
  Entries noted_;
};

}  // namespace tessera::cuda
