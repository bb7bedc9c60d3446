"""The index of words as the version before wrote it: its tables and triggers, with a row that is indexed."""

from __future__ import annotations

from typing import Final

SQLITE: Final = """
CREATE TABLE search_documents(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE search_texts(id INTEGER PRIMARY KEY, owner TEXT NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE search_words USING fts5(owner, text, content='search_texts', content_rowid='id',
  tokenize='unicode61 remove_diacritics 2');
CREATE TABLE search_waiting(id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL,
  claimed_until REAL NOT NULL);
CREATE TABLE search_state(filled TEXT NOT NULL, deleted_at INTEGER);
INSERT INTO search_state(filled) VALUES ('l0');
CREATE TRIGGER search_inserted AFTER INSERT ON records WHEN new.key >= 'l/' AND new.key < 'l0' BEGIN
  DELETE FROM search_waiting WHERE key = new.key;
  INSERT INTO search_waiting(key, claimed_until) VALUES (new.key, 0);
END;
CREATE TRIGGER search_updated AFTER UPDATE ON records WHEN new.key >= 'l/' AND new.key < 'l0' BEGIN
  DELETE FROM search_waiting WHERE key = new.key;
  INSERT INTO search_waiting(key, claimed_until) VALUES (new.key, 0);
END;
CREATE TRIGGER search_deleted AFTER DELETE ON records WHEN old.key >= 'l/' AND old.key < 'l0' BEGIN
  DELETE FROM search_waiting WHERE key = old.key;
  INSERT INTO search_words(search_words, rowid, owner, text) SELECT 'delete', id, owner, text FROM search_texts
    WHERE id = (SELECT id FROM search_documents WHERE key = old.key);
  DELETE FROM search_texts WHERE id = (SELECT id FROM search_documents WHERE key = old.key);
  DELETE FROM search_documents WHERE key = old.key;
END;
INSERT INTO search_documents SELECT 1, min(key) FROM records WHERE key >= 'l/' AND key < 'l0';
INSERT INTO search_texts VALUES (1, 'owner', 'former');
INSERT INTO search_words(rowid, owner, text) VALUES (1, 'owner', 'former');
INSERT INTO search_waiting(key, claimed_until) SELECT max(key), 0 FROM records WHERE key >= 'l/' AND key < 'l0';
"""

POSTGRES: Final = """
CREATE TABLE $schema.search_documents(key bytea PRIMARY KEY, words tsvector NOT NULL, text text NOT NULL);
CREATE INDEX search_words ON $schema.search_documents USING gin(words);
CREATE TABLE $schema.search_waiting(
  id bigserial PRIMARY KEY, key bytea UNIQUE NOT NULL, claimed_until float8 NOT NULL DEFAULT 0);
CREATE FUNCTION $schema.search_note() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM $schema.search_waiting WHERE key = OLD.key;
    DELETE FROM $schema.search_documents WHERE key = OLD.key;
  ELSE
    INSERT INTO $schema.search_waiting(key) VALUES (NEW.key)
    ON CONFLICT (key) DO UPDATE SET id = excluded.id, claimed_until = 0;
  END IF;
  RETURN NULL;
END
$body$;
CREATE TRIGGER search_written AFTER INSERT OR UPDATE ON $schema.partition_rows FOR EACH ROW
  WHEN (NEW.key >= 'l/' AND NEW.key < 'l0') EXECUTE FUNCTION $schema.search_note();
CREATE TRIGGER search_deleted AFTER DELETE ON $schema.partition_rows FOR EACH ROW
  WHEN (OLD.key >= 'l/' AND OLD.key < 'l0') EXECUTE FUNCTION $schema.search_note();
CREATE TABLE $schema.search_state(filled bytea NOT NULL);
INSERT INTO $schema.search_state VALUES ('l0');
INSERT INTO $schema.search_documents SELECT min(key), 'former', 'former' FROM $schema.partition_rows
  WHERE key >= 'l/' AND key < 'l0';
INSERT INTO $schema.search_waiting(key) SELECT max(key) FROM $schema.partition_rows WHERE key >= 'l/' AND key < 'l0';
"""
