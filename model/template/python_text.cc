#include "model/template/python_text.h"

#include <string.h>

#include <algorithm>

#include "model/template/status_macros.h"
#include "utf8proc.h"

namespace baton::model::jinja {
namespace {

// Case pairs that are not one code point to one.
struct Special {
  int32_t code_point;
  const char* upper;
  const char* title;
};
constexpr Special kSpecialCases[] = {
    {0xDF, "SS", "Ss"},     {0x149, "\xCA\xBCN", "\xCA\xBCN"},
    {0xFB00, "FF", "Ff"},   {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},   {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
};

void AppendUpper(int32_t code_point, bool title, std::string* out) {
  for (const Special& special : kSpecialCases) {
    if (special.code_point == code_point) {
      out->append(title ? special.title : special.upper);
      return;
    }
  }
  AppendCodePoint(title ? utf8proc_totitle(code_point) : utf8proc_toupper(code_point), out);
}

void AppendLower(int32_t code_point, std::string* out) {
  if (code_point == 0x130) {  // capital dotted I
    out->append("i\xCC\x87");
    return;
  }
  AppendCodePoint(utf8proc_tolower(code_point), out);
}

bool IsCased(int32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(code_point);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

template <typename Function>
void ForEach(absl::string_view text, const Function& function) {
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) function(CodePointAt(text, at), at);
}

}  // namespace

size_t CodePointSize(absl::string_view text, size_t at) {
  const uint8_t lead = static_cast<uint8_t>(text[at]);
  const size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(size, text.size() - at);
}

int32_t CodePointAt(absl::string_view text, size_t at) {
  utf8proc_int32_t code_point = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                   static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
  return code_point < 0 ? 0xFFFD : code_point;
}

void AppendCodePoint(int32_t code_point, std::string* out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code_point, buffer);
  out->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(size));
}

size_t CountCodePoints(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::optional<size_t> FirstInvalidByte(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code_point;
    const utf8proc_ssize_t size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                                   static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
    if (size <= 0) return at;
    at += static_cast<size_t>(size);
  }
  return std::nullopt;
}

bool IsSpace(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPrintable(int32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlphanumeric(int32_t c) {
  const utf8proc_category_t category = utf8proc_category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

absl::string_view Strip(absl::string_view text, std::optional<absl::string_view> chars, Side side) {
  const auto strips = [&](size_t at, size_t size) {
    if (!chars.has_value()) return IsSpace(CodePointAt(text, at));
    // Both are valid UTF-8, so a code point's bytes are found only as that code point.
    return chars->find(text.substr(at, size)) != absl::string_view::npos;
  };
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    const size_t size = CodePointSize(text, begin);
    if (!strips(begin, size)) break;
    begin += size;
  }
  while (side != Side::kLeft && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!strips(start, end - start)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string Upper(absl::string_view text) {
  std::string out;
  ForEach(text, [&](int32_t c, size_t) { AppendUpper(c, false, &out); });
  return out;
}

std::string Lower(absl::string_view text) {
  std::string out;
  ForEach(text, [&](int32_t c, size_t) { AppendLower(c, &out); });
  return out;
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  ForEach(text, [&](int32_t c, size_t at) { at == 0 ? AppendUpper(c, true, &out) : AppendLower(c, &out); });
  return out;
}

std::string Title(absl::string_view text) {
  std::string out;
  bool in_word = false;
  ForEach(text, [&](int32_t c, size_t) {
    in_word ? AppendLower(c, &out) : AppendUpper(c, true, &out);
    in_word = IsCased(c);
  });
  return out;
}

std::string TitleFilter(absl::string_view text) {
  std::string out;
  bool at_start = true;
  ForEach(text, [&](int32_t c, size_t) {
    const bool separates = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || IsSpace(c);
    at_start ? AppendUpper(c, false, &out) : AppendLower(c, &out);
    at_start = separates;
  });
  return out;
}

absl::StatusOr<size_t> FindText(Budget& budget, absl::string_view text, absl::string_view needle, size_t from) {
  if (from > text.size()) return std::string::npos;
  if (needle.empty()) return from;
  // memmem, unlike find, is linear for hostile text too.
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  const size_t at =
      found == nullptr ? std::string::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  JINJA_RETURN_IF_ERROR(budget.StepBytes(std::min(at, text.size()) - from + needle.size()));
  return at;
}

absl::StatusOr<std::string> Replace(Budget& budget, absl::string_view text, absl::string_view from,
                                    absl::string_view to, int64_t count) {
  std::string out;
  const auto append = [&](absl::string_view piece) {
    out.append(piece.data(), piece.size());
    return budget.CheckString(out.size());
  };
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    if (from.empty()) {  // before each code point and at the end
      JINJA_RETURN_IF_ERROR(budget.Step());
      JINJA_RETURN_IF_ERROR(append(to));
      if (at == text.size()) return out;
      const size_t size = CodePointSize(text, at);
      JINJA_RETURN_IF_ERROR(append(text.substr(at, size)));
      at += size;
      continue;
    }
    JINJA_ASSIGN_OR_RETURN(const size_t found, FindText(budget, text, from, at));
    if (found == std::string::npos) break;
    JINJA_RETURN_IF_ERROR(append(text.substr(at, found - at)));
    JINJA_RETURN_IF_ERROR(append(to));
    at = found + from.size();
  }
  JINJA_RETURN_IF_ERROR(append(text.substr(at)));
  return out;
}

namespace {

absl::StatusOr<std::vector<absl::string_view>> SplitSpaces(Budget& budget, absl::string_view text, int64_t max_splits,
                                                           bool from_right) {
  std::vector<absl::string_view> parts;
  JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size()));
  absl::string_view rest = Strip(text, std::nullopt, from_right ? Side::kRight : Side::kLeft);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(rest);
      break;
    }
    JINJA_RETURN_IF_ERROR(budget.Step());
    if (from_right) {
      size_t begin = rest.size();
      while (begin > 0) {
        size_t start = begin - 1;
        while (start > 0 && (static_cast<uint8_t>(rest[start]) & 0xC0) == 0x80) --start;
        if (IsSpace(CodePointAt(rest, start))) break;
        begin = start;
      }
      parts.push_back(rest.substr(begin));
      rest = Strip(rest.substr(0, begin), std::nullopt, Side::kRight);
    } else {
      size_t end = 0;
      while (end < rest.size() && !IsSpace(CodePointAt(rest, end))) end += CodePointSize(rest, end);
      parts.push_back(rest.substr(0, end));
      rest = Strip(rest.substr(end), std::nullopt, Side::kLeft);
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<absl::string_view>> Split(Budget& budget, absl::string_view text,
                                                     std::optional<absl::string_view> separator, int64_t max_splits,
                                                     bool from_right) {
  if (!separator.has_value()) return SplitSpaces(budget, text, max_splits, from_right);
  if (separator->empty()) return TypeError("empty separator");
  std::vector<absl::string_view> parts;
  absl::string_view rest = text;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    size_t found;
    if (from_right) {
      found = rest.rfind(*separator);
      const size_t seen = found == absl::string_view::npos ? rest.size() : rest.size() - found;
      // rfind compares the separator at every place.
      JINJA_RETURN_IF_ERROR(budget.StepBytes(seen * std::min<size_t>(separator->size(), 64)));
    } else {
      JINJA_ASSIGN_OR_RETURN(found, FindText(budget, rest, *separator, 0));
    }
    if (found == absl::string_view::npos) break;
    if (from_right) {
      parts.push_back(rest.substr(found + separator->size()));
      rest = rest.substr(0, found);
    } else {
      parts.push_back(rest.substr(0, found));
      rest = rest.substr(found + separator->size());
    }
  }
  parts.push_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<absl::string_view> SplitLines(absl::string_view text) {
  std::vector<absl::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t c = CodePointAt(text, at);
    size_t next = at + CodePointSize(text, at);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (ends) {
      lines.push_back(text.substr(start, at - start));
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      start = next;
    }
    at = next;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

}  // namespace baton::model::jinja
