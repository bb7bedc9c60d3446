// Runs before the first paint, and before the modules are there: a chosen theme does not flash, and the first rows of the list are asked for meanwhile.
(() => {
  const stored = (storage, name) => {
    try {
      return globalThis[storage].getItem(name);
    } catch {
      return null; // Storage is blocked: the system's theme holds, and there is no token yet.
    }
  };
  const theme = stored("localStorage", "responses.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  const query = new URLSearchParams(location.search);
  if (!/^\/ui\/?$/.test(location.pathname) || query.has("owners") || query.has("owner")) return;
  query.append("limit", 50);
  const address = `/v1/ui/responses?${query}`;
  const token = stored("sessionStorage", "responses.token");
  const headers = { accept: "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  const answer = fetch(address, { headers, cache: "no-store" });
  answer.catch(() => null); // its reader shows the failure
  globalThis.asked = { address, token, answer };
})();
