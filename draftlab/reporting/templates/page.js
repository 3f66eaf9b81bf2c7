// Tables sort by a click on a title and copy as Markdown. Without this they are plain tables.
"use strict";
(function () {
  function valueOf(cell) {
    var text = cell.textContent.trim();
    var number = parseFloat(text.replace(/,/g, ""));
    return { text: text, number: number, missing: text === "–" };
  }

  function compare(a, b) {
    if (a.missing || b.missing) return a.missing === b.missing ? 0 : a.missing ? 1 : -1;
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number - b.number;
    return a.text.localeCompare(b.text);
  }

  function sortBy(table, index, heads) {
    var head = heads[index];
    var falling = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    Array.prototype.forEach.call(table.tBodies, function (body) {
      var rows = Array.prototype.map.call(body.rows, function (row, place) {
        return { row: row, place: place, value: valueOf(row.cells[index]) };
      });
      rows.sort(function (a, b) {
        var order = compare(a.value, b.value);
        if (falling && !a.value.missing && !b.value.missing) order = -order;
        return order || a.place - b.place;
      });
      rows.forEach(function (entry) { body.appendChild(entry.row); });
    });
  }

  function makeSortable(table) {
    var heads = Array.prototype.slice.call(table.querySelectorAll("tr.titles th"));
    heads.forEach(function (head, index) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () { sortBy(table, index, heads); });
    });
  }

  // titles that tell columns apart without the row above them; "this run" goes without saying
  function titlesOf(table) {
    var overs = [];
    Array.prototype.forEach.call(table.querySelectorAll("tr.over > *"), function (cell) {
      var text = cell.textContent.trim();
      for (var i = 0; i < cell.colSpan; i++) overs.push(text === "this run" ? "" : text);
    });
    return Array.prototype.map.call(table.querySelectorAll("tr.titles th"), function (head, index) {
      return (overs[index] ? overs[index] + " " : "") + head.textContent.trim();
    });
  }

  function textOf(cell) { return cell.textContent; }

  // what GitHub would take for markup: emphasis, code, tags, links, formulas, the cell's own end
  function escaped(text) {
    return text.trim().replace(/\s+/g, " ").replace(/[\\`*_~<>&$|]|\](?=[(\[])/g, "\\$&");
  }

  function markdownOf(table) {
    function line(texts) { return "| " + texts.map(escaped).join(" | ") + " |"; }
    var rule = Array.prototype.map.call(table.querySelectorAll("tr.titles th"), function (head) {
      return head.classList.contains("num") ? "---:" : ":---";
    });
    var lines = [line(titlesOf(table)), "|" + rule.join("|") + "|"];
    Array.prototype.forEach.call(table.querySelectorAll("tbody tr"), function (row) {
      lines.push(line(Array.prototype.map.call(row.cells, textOf)));
    });
    return lines.join("\n") + "\n";
  }

  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("not copied"));
  }

  function makeCopyable(box, table) {
    var button = document.createElement("button");
    var said = document.createElement("span");
    button.type = "button";
    button.textContent = "copy as Markdown";
    said.setAttribute("role", "status");
    button.addEventListener("click", function () {
      copy(markdownOf(table)).then(
        function () { said.textContent = "copied"; },
        function () { said.textContent = "the browser refused"; }
      );
    });
    var tools = box.querySelector(".tools");
    tools.insertBefore(button, tools.firstChild);
    tools.appendChild(said);
  }

  document.querySelectorAll("div.table").forEach(function (box) {
    var table = box.querySelector("table");
    makeSortable(table);
    makeCopyable(box, table);
  });
})();
