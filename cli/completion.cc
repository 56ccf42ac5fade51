#include "cli/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace baton::cli {
namespace {

std::vector<std::string> OptionNames(const CompletionCommand& command, bool with_value_only) {
  std::vector<std::string> names;
  for (const CompletionOption& option : command.options) {
    if (with_value_only && !option.takes_value) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> Words(const CompletionCommand& command) {
  std::vector<std::string> words = command.words;
  for (const CompletionCommand& sub : command.commands) words.push_back(sub.name);
  return words;
}

// The paths of commands that have commands, for finding out which one the line is about.
void AppendPaths(const CompletionCommand& command, const std::string& path, std::vector<std::string>* paths) {
  for (const CompletionCommand& sub : command.commands) {
    paths->push_back(absl::StrCat(path, "/", sub.name));
    AppendPaths(sub, paths->back(), paths);
  }
}

void AppendBashCases(const CompletionCommand& command, const std::string& path, std::string* out) {
  absl::StrAppend(out, "    ", path.empty() ? "''" : path, ")\n      words='", absl::StrJoin(Words(command), " "),
                  "'\n      flags='", absl::StrJoin(OptionNames(command, false), " "), "'\n      valued=' ",
                  absl::StrJoin(OptionNames(command, true), " "), " '\n      ;;\n");
  for (const CompletionCommand& sub : command.commands) AppendBashCases(sub, absl::StrCat(path, "/", sub.name), out);
}

// For zsh's single quotes and its option syntax, in which brackets and colons mean something.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text.substr(0, text.find('\n')),
                             {{"'", "'\\''"}, {"[", "("}, {"]", ")"}, {":", " -"}, {"\\", ""}});
}

void AppendZshFunction(const CompletionCommand& command, const std::string& function, std::string* out) {
  absl::StrAppend(out, function, "() {\n");
  if (!command.commands.empty()) {
    absl::StrAppend(out, "  local -a commands\n  commands=(\n");
    for (const CompletionCommand& sub : command.commands) {
      absl::StrAppend(out, "    '", sub.name, ":", ZshText(sub.help), "'\n");
    }
    absl::StrAppend(out, "  )\n");
  }
  absl::StrAppend(out, "  local context state line\n  _arguments -C");
  for (const CompletionOption& option : command.options) {
    for (const std::string& name : option.names) {
      absl::StrAppend(out, " \\\n    '*", name, option.takes_value && name.size() > 2 ? "=" : "", "[",
                      ZshText(option.help), "]", option.takes_value ? ":value:_files" : "", "'");
    }
  }
  if (!command.commands.empty()) {
    absl::StrAppend(out, " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n",
                    "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n");
    for (const CompletionCommand& sub : command.commands) {
      absl::StrAppend(out, "        ", sub.name, ") ", function, "_", sub.name, " ;;\n");
    }
    absl::StrAppend(out, "      esac\n      ;;\n  esac\n");
  } else if (!command.words.empty()) {
    absl::StrAppend(out, " \\\n    '*:word:(", absl::StrJoin(command.words, " "), ")'\n");
  } else {
    absl::StrAppend(out, " \\\n    '*:file:_files'\n");
  }
  absl::StrAppend(out, "}\n");
  for (const CompletionCommand& sub : command.commands) {
    AppendZshFunction(sub, absl::StrCat(function, "_", sub.name), out);
  }
}

}  // namespace

std::string BashCompletion(const CompletionCommand& root) {
  std::vector<std::string> paths;
  AppendPaths(root, "", &paths);
  std::string out = absl::StrCat(
      "# bash completion of `baton`; made by: baton completion bash\n"
      "_baton() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path='' i\n"
      "  local words='' flags='' valued=' '\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$path/${COMP_WORDS[i]}\" in\n      ",
      absl::StrJoin(paths, "|"),
      ") path=\"$path/${COMP_WORDS[i]}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$path\" in\n");
  AppendBashCases(root, "", &out);
  absl::StrAppend(&out,
                  "  esac\n"
                  "  COMPREPLY=()\n"
                  "  # \"--flag=value\" arrives as three words.\n"
                  "  if [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
                  "  if [[ $cur == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-1]} cur=''; fi\n"
                  "  if [[ $cur == -* ]]; then\n"
                  "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
                  "  elif [[ $prev != -* || $valued != *\" $prev \"* ]] && [[ -n $words ]]; then\n"
                  "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                  "  else\n"
                  "    compopt -o filenames 2>/dev/null || true\n"
                  "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                  "  fi\n"
                  "}\n"
                  "complete -F _baton baton\n");
  return out;
}

std::string ZshCompletion(const CompletionCommand& root) {
  std::string out = "#compdef baton\n# zsh completion of `baton`; made by: baton completion zsh\n";
  AppendZshFunction(root, "_baton", &out);
  // As a file of $fpath the function is called by its name; evaluated, it registers itself.
  absl::StrAppend(&out, "if [[ $funcstack[1] == _baton ]]; then _baton \"$@\"; else compdef _baton baton; fi\n");
  return out;
}

}  // namespace baton::cli
